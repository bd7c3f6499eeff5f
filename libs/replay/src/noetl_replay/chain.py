"""Tamper evidence: follow the chain of checksums through a history and name what broke it.

The chain needs no key, so that whoever may write every row may also seal everything anew: against
that only a head that was exported before helps. Everything less is named here.
"""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from noetl_contracts import codec, stored
from noetl_contracts.ledger import Head
from noetl_contracts.stored import StoredEvent

# Events that left their place are looked for this far.
REACH = 64


class Damage(StrEnum):
    """What can be wrong with a history."""

    CHANGED = "changed"
    REMOVED = "removed"
    INSERTED = "inserted"
    REORDERED = "reordered"
    RENUMBERED = "renumbered"
    COLUMN = "column"
    HEAD = "head"


class Finding(Struct, frozen=True, kw_only=True):
    """A thing that is wrong, and the event or versions that it is wrong with."""

    damage: Damage
    version: int
    message: str
    event_id: str | None = None


class Examination:
    """Follows one history, fed in order and in parts; holds no more than a window of it."""

    def __init__(self, *, exported: Head | None = None) -> None:
        self.findings: list[Finding] = []
        self.events = 0
        self.concealed = 0
        self.last: StoredEvent | None = None
        self._exported = exported
        self._window: list[StoredEvent] = []
        self._strangers: list[StoredEvent] = []
        self._returned: list[tuple[int, StoredEvent]] = []
        self._jumped: list[tuple[int, StoredEvent]] = []
        self._previous = codec.CHECKSUM_NONE
        self._next = 1
        self._shift = 0

    def feed(self, page: Iterable[StoredEvent]) -> None:
        """Examine what follows."""
        for one in page:
            self.events += 1
            self.last = one
            self._window.append(one)
            self._look_at(one)
            while len(self._window) > REACH:
                self._step()

    def end(self, head: Head | None) -> list[Finding]:
        """Examine the rest, and whether the history ends where the ledger says that it does."""
        while self._window:
            self._step()
        if self._strangers:
            # They kept the others from settling; who came before its place is none of them.
            self._jumped = self._returned
            self._find_reordered()
        for one in self._strangers:
            self._find(
                Damage.INSERTED,
                one,
                f"event {one.event_id} at version {one.stream_version} was inserted: "
                "the events around it follow each other without it",
            )
        if self._shift and not any(
            found.damage in {Damage.INSERTED, Damage.REMOVED} for found in self.findings
        ):
            self._find_at(
                Damage.RENUMBERED,
                self._next - 1,
                f"the last events bear versions that are {self._shift:+d} off those they were "
                "sealed with",
            )
        self._compare_head(head)
        return sorted(self.findings, key=lambda found: found.version)

    def _look_at(self, one: StoredEvent) -> None:
        if one.altered:
            self._find(
                Damage.COLUMN,
                one,
                f"event {one.event_id} at version {one.stream_version} was changed in the "
                f"columns that queries read: {', '.join(one.altered)}",
            )
        exported = self._exported
        if (
            exported is not None
            and one.stream_version == exported.version
            and one.envelope_checksum != exported.checksum
        ):
            self._find(
                Damage.HEAD,
                one,
                f"event {one.event_id} at version {one.stream_version} is not the one whose "
                "checksum was exported: the history up to it was sealed anew",
            )

    def _step(self) -> None:
        successor = self._successor()
        if successor is not None:
            self._place(successor)
            return
        current = self._window.pop(0)
        if self._close_gap(current):
            self._go_on(current)
        elif self._is_late(current):
            self._strangers.append(current)
        else:
            self._find_changed(current)
            self._go_on(current)

    def _successor(self) -> StoredEvent | None:
        """Return the event that was sealed behind the last one, wherever it stands."""
        first = self._window[0]
        if first.concealed and first.stream_version - self._shift == self._next:
            # What it was sealed with is not all here: its own place is believed, and the next
            # event shows whether its checksum is.
            self.concealed += 1
            return first
        for one in (*self._window[:1], *self._strangers, *self._window[1:]):
            if stored.is_sealed(one, self._previous, version=self._next):
                return one
        return None

    def _place(self, one: StoredEvent) -> None:
        if one in self._strangers:
            self._strangers.remove(one)
            self._returned.append((self._next, one))
        else:
            place = self._window.index(one)
            if place:
                self._strangers += self._window[:place]
                self._jumped.append((self._next, one))
            del self._window[: place + 1]
        if not self._strangers:
            self._shift = one.stream_version - self._next
            self._find_reordered()
        self._go_on(one)

    def _find_reordered(self) -> None:
        """Name those that changed places: the fewer of who came too early and who too late."""
        fewer = min(self._returned, self._jumped, key=len) if self._returned else []
        for version, one in fewer:
            self._find(
                Damage.REORDERED,
                one,
                f"event {one.event_id} stands at version {one.stream_version} and was sealed at "
                f"version {version}",
            )
        self._returned, self._jumped = [], []

    def _close_gap(self, current: StoredEvent) -> bool:
        """Take note of versions that are not there; tell whether there are any before this one."""
        missing = current.stream_version - self._shift - self._next
        if missing <= 0:
            return False
        self._find_removed(self._next, self._next + missing - 1)
        self._next += missing
        return True

    def _is_late(self, current: StoredEvent) -> bool:
        return current.stream_version - self._shift < self._next

    def _find_changed(self, current: StoredEvent) -> None:
        """Tell a changed event from one whose predecessors were removed and who was renumbered."""
        following = self._window[0] if self._window else None
        checksum = current.envelope_checksum
        if following is not None:
            for gone in range(1, REACH + 1):
                sealed_at = self._next + 1 + gone
                if stored.is_sealed(following, checksum, version=sealed_at):
                    self._find_removed(self._next, self._next + gone - 1)
                    self._next += gone
                    self._shift -= gone
                    return
        self._find(
            Damage.CHANGED,
            current,
            f"event {current.event_id} at version {current.stream_version} is not what was sealed "
            "there: it was changed, or the one before it was changed and sealed again",
        )

    def _go_on(self, one: StoredEvent) -> None:
        self._previous = one.envelope_checksum
        self._next += 1

    def _compare_head(self, head: Head | None) -> None:
        last = self.last.stream_version if self.last is not None else 0
        for said, name in ((head, "the ledger's head"), (self._exported, "the exported head")):
            if said is not None and said.version > last:
                self._find_removed(last + 1, said.version, witness=name)
        if head is None:
            if last:
                self._find_at(
                    Damage.HEAD, last, "the ledger has events but says nothing of where they end"
                )
            return
        if head.version < last:
            self._find_at(
                Damage.INSERTED,
                head.version + 1,
                f"versions {head.version + 1} to {last} stand behind the ledger's head",
            )
        elif head.version == last and self._is_other(head):
            self._find_at(
                Damage.HEAD, last, "the ledger's head names another last event than is there"
            )

    def _is_other(self, head: Head) -> bool:
        return self.last is not None and self.last.envelope_checksum != head.checksum

    def _find_removed(self, first: int, last: int, *, witness: str = "") -> None:
        versions = f"version {first} was" if first == last else f"versions {first} to {last} were"
        tail = f", as {witness} shows" if witness else ""
        self._find_at(Damage.REMOVED, first, f"{versions} removed{tail}")

    def _find(self, damage: Damage, one: StoredEvent, message: str) -> None:
        self.findings.append(
            Finding(
                damage=damage, version=one.stream_version, event_id=one.event_id, message=message
            )
        )

    def _find_at(self, damage: Damage, version: int, message: str) -> None:
        self.findings.append(Finding(damage=damage, version=version, message=message))


def examine(
    events: Iterable[StoredEvent], *, head: Head | None, exported: Head | None = None
) -> list[Finding]:
    """Examine a whole history; nothing found means that it is as it was written."""
    examination = Examination(exported=exported)
    examination.feed(events)
    return examination.end(head)
