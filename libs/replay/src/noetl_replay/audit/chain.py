"""Tamper evidence: follow the chain of checksums through a history and name what broke it.

The chain needs no key. Someone who may write every row can therefore compute all checksums anew;
only a head that was exported before shows that. All lesser changes are detected here.
"""

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.records import HistoryHead
from noetl_contracts.ledger.stored_event import StoredEvent

# Events that left their place are looked for this far.
REACH = 64


class ChainDamage(StrEnum):
    """What can be wrong with a history."""

    CHANGED = "changed"
    REMOVED = "removed"
    INSERTED = "inserted"
    REORDERED = "reordered"
    RENUMBERED = "renumbered"
    COLUMN = "column"
    HEAD = "head"


class ChainFinding(Struct, frozen=True, kw_only=True):
    """A thing that is wrong, and the event or versions that it is wrong with."""

    damage: ChainDamage
    version: int
    message: str
    event_id: str | None = None


class ChainExamination:
    """Follows one history, fed in order and in parts; holds no more than a window of it."""

    def __init__(self, *, exported: HistoryHead | None = None) -> None:
        self.findings: list[ChainFinding] = []
        self.events = 0
        self.concealed = 0
        self.last: StoredEvent | None = None
        self._exported = exported
        self._window: list[StoredEvent] = []
        self._misplaced: list[StoredEvent] = []
        self._returned: list[tuple[int, StoredEvent]] = []
        self._jumped: list[tuple[int, StoredEvent]] = []
        self._previous = codec.CHECKSUM_NONE
        self._next = 1
        self._shift = 0

    def feed_events(self, page: Iterable[StoredEvent]) -> None:
        """Examine what follows."""
        for item in page:
            self.events += 1
            self.last = item
            self._window.append(item)
            self._check_event(item)
            while len(self._window) > REACH:
                self._examine_next()

    def finish_examination(self, head: HistoryHead | None) -> list[ChainFinding]:
        """Examine the rest, and whether the history ends where the ledger says that it does."""
        while self._window:
            self._examine_next()
        if self._misplaced:
            # They kept the others from settling; who came before its place is none of them.
            self._jumped = self._returned
            self._report_reordered()
        for event in self._misplaced:
            self._report_event(
                ChainDamage.INSERTED,
                event,
                f"event {event.event_id} at version {event.stream_version} was inserted: "
                "the events around it follow each other without it",
            )
        if self._shift and not any(
            finding.damage in {ChainDamage.INSERTED, ChainDamage.REMOVED}
            for finding in self.findings
        ):
            self._report_version(
                ChainDamage.RENUMBERED,
                self._next - 1,
                f"the last events bear versions that are {self._shift:+d} off those they were "
                "sealed with",
            )
        self._check_heads(head)
        return sorted(self.findings, key=lambda chain_finding: chain_finding.version)

    def _check_event(self, stored_event: StoredEvent) -> None:
        if stored_event.altered:
            self._report_event(
                ChainDamage.COLUMN,
                stored_event,
                f"event {stored_event.event_id} at version {stored_event.stream_version} was "
                f"changed in the columns that queries read: {', '.join(stored_event.altered)}",
            )
        exported = self._exported
        if (
            exported is not None
            and stored_event.stream_version == exported.version
            and stored_event.envelope_checksum != exported.checksum
        ):
            self._report_event(
                ChainDamage.HEAD,
                stored_event,
                f"event {stored_event.event_id} at version {stored_event.stream_version} is not "
                "the one whose checksum was exported: the history up to it was sealed anew",
            )

    def _examine_next(self) -> None:
        successor = self._find_successor()
        if successor is not None:
            self._follow_successor(successor)
            return
        current = self._window.pop(0)
        if self._report_gap(current):
            self._advance_past(current)
        elif self._is_behind(current):
            self._misplaced.append(current)
        else:
            self._report_changed(current)
            self._advance_past(current)

    def _find_successor(self) -> StoredEvent | None:
        """Return the event that was sealed behind the last one, wherever it stands."""
        first = self._window[0]
        if first.concealed and first.stream_version - self._shift == self._next:
            # What it was sealed with is not all here: its own place is believed, and the next
            # event shows whether its checksum is.
            self.concealed += 1
            return first
        for candidate in (*self._window[:1], *self._misplaced, *self._window[1:]):
            if stored_event.is_stored_event_sealed(candidate, self._previous, version=self._next):
                return candidate
        return None

    def _follow_successor(self, stored_event: StoredEvent) -> None:
        if stored_event in self._misplaced:
            self._misplaced.remove(stored_event)
            self._returned.append((self._next, stored_event))
        else:
            place = self._window.index(stored_event)
            if place:
                self._misplaced += self._window[:place]
                self._jumped.append((self._next, stored_event))
            del self._window[: place + 1]
        if not self._misplaced:
            self._shift = stored_event.stream_version - self._next
            self._report_reordered()
        self._advance_past(stored_event)

    def _report_reordered(self) -> None:
        """Name those that changed places: the fewer of who came too early and who too late."""
        fewer = min(self._returned, self._jumped, key=len) if self._returned else []
        for version, item in fewer:
            self._report_event(
                ChainDamage.REORDERED,
                item,
                f"event {item.event_id} stands at version {item.stream_version} and was sealed at "
                f"version {version}",
            )
        self._returned, self._jumped = [], []

    def _report_gap(self, current: StoredEvent) -> bool:
        """Take note of versions that are not there; tell whether there are any before this one."""
        missing = current.stream_version - self._shift - self._next
        if missing <= 0:
            return False
        self._report_removed(self._next, self._next + missing - 1)
        self._next += missing
        return True

    def _is_behind(self, current: StoredEvent) -> bool:
        return current.stream_version - self._shift < self._next

    def _report_changed(self, current: StoredEvent) -> None:
        """Tell a changed event from one whose predecessors were removed and who was renumbered."""
        following = self._window[0] if self._window else None
        checksum = current.envelope_checksum
        if following is not None:
            for gone in range(1, REACH + 1):
                sealed_at = self._next + 1 + gone
                if stored_event.is_stored_event_sealed(following, checksum, version=sealed_at):
                    self._report_removed(self._next, self._next + gone - 1)
                    self._next += gone
                    self._shift -= gone
                    return
        self._report_event(
            ChainDamage.CHANGED,
            current,
            f"event {current.event_id} at version {current.stream_version} is not what was sealed "
            "there: it was changed, or the one before it was changed and sealed again",
        )

    def _advance_past(self, stored_event: StoredEvent) -> None:
        self._previous = stored_event.envelope_checksum
        self._next += 1

    def _check_heads(self, head: HistoryHead | None) -> None:
        last = self.last.stream_version if self.last is not None else 0
        for history_head, name in (
            (head, "the ledger's head"),
            (self._exported, "the exported head"),
        ):
            if history_head is not None and history_head.version > last:
                self._report_removed(last + 1, history_head.version, evidence_name=name)
        if head is None:
            if last:
                self._report_version(
                    ChainDamage.HEAD,
                    last,
                    "the ledger has events but says nothing of where they end",
                )
            return
        if head.version < last:
            self._report_version(
                ChainDamage.INSERTED,
                head.version + 1,
                f"versions {head.version + 1} to {last} stand behind the ledger's head",
            )
        elif head.version == last and self._is_other_head(head):
            self._report_version(
                ChainDamage.HEAD, last, "the ledger's head names another last event than is there"
            )

    def _is_other_head(self, head: HistoryHead) -> bool:
        return self.last is not None and self.last.envelope_checksum != head.checksum

    def _report_removed(self, first: int, last: int, *, evidence_name: str = "") -> None:
        versions = f"version {first} was" if first == last else f"versions {first} to {last} were"
        tail = f", as {evidence_name} shows" if evidence_name else ""
        self._report_version(ChainDamage.REMOVED, first, f"{versions} removed{tail}")

    def _report_event(self, damage: ChainDamage, stored_event: StoredEvent, message: str) -> None:
        self.findings.append(
            ChainFinding(
                damage=damage,
                version=stored_event.stream_version,
                event_id=stored_event.event_id,
                message=message,
            )
        )

    def _report_version(self, damage: ChainDamage, version: int, message: str) -> None:
        self.findings.append(ChainFinding(damage=damage, version=version, message=message))


def examine_history(
    events: Iterable[StoredEvent], *, head: HistoryHead | None, exported: HistoryHead | None = None
) -> list[ChainFinding]:
    """Examine a whole history; nothing found means that it is as it was written."""
    examination = ChainExamination(exported=exported)
    examination.feed_events(events)
    return examination.finish_examination(head)
