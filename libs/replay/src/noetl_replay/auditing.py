"""One history audited as a whole: its chain, its fold, and the read models that stand for it.

The same code audits one execution or a million: whoever reads the events hands them over by pages.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from noetl_contracts import codec, stored
from noetl_contracts.errors import Permanent
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import Head
from noetl_contracts.stored import StoredEvent
from noetl_replay import checksum, diffing, rows
from noetl_replay.chain import Examination
from noetl_replay.replaying import Replay
from noetl_replay.state import empty

# Of one execution's damage so much is told; the first of it says where to look.
DAMAGE_MAX = 20
_DAMAGE_CHARACTERS_MAX = 500

# What the fold raises on a history that no planner of this release would have written.
_FOLD_FAILURES = (Permanent, LookupError, TypeError, ValueError, AttributeError)


class Projected(StrEnum):
    """How the read models compare with what the history folds to."""

    SAME = "same"
    DIFFERS = "differs"
    ELSEWHERE = "elsewhere"
    ABSENT = "absent"
    UNREAD = "unread"


class LiveRows(Struct, frozen=True, kw_only=True):
    """The rows of every surface, and the version up to which they are projected."""

    version: int
    rows: Mapping[str, Sequence[Mapping[str, Any]]]


class Audited(Struct, frozen=True, kw_only=True):
    """What an audit found in one execution; no `damage` means that all of it holds.

    `projected` is `elsewhere` where the rows stand at another version, which proves nothing.
    """

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    source: str
    events: int
    version: int
    status: str
    path: str
    projected: Projected
    envelope_checksum: str
    damage: list[str]

    @property
    def is_ok(self) -> bool:
        """Tell whether nothing was found."""
        return not self.damage


class Auditor:
    """Audits one history, fed in order; holds its state, its rows and a window of its events."""

    def __init__(
        self, execution_id: ExecutionId, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> None:
        self._examination = Examination()
        self._replay = Replay(empty(execution_id, tenant_id, organization_id))
        self._failure: str | None = None
        self._strangers = 0

    @property
    def version(self) -> int:
        """Return the version of the last event that was fed, 0 before the first."""
        last = self._examination.last
        return 0 if last is None else last.stream_version

    def feed(self, page: Sequence[StoredEvent]) -> None:
        """Follow the chain through what comes next, and fold it."""
        self._examination.feed(page)
        state = self._replay.state
        owner = (state.execution_id, state.tenant_id, state.organization_id)
        self._strangers += sum(
            (one.execution_id, one.tenant_id, one.organization_id) != owner for one in page
        )
        if self._failure is not None:
            return
        try:
            self._replay.feed([stored.read(one) for one in page])
        except _FOLD_FAILURES as failure:
            self._failure = (
                f"does not fold behind version {self._replay.state.version}: "
                f"{type(failure).__name__}: {failure}"
            )

    def end(self, head: Head | None, *, live: LiveRows | None, source: str) -> Audited:
        """Say what was found; without `live` the read models were not read."""
        damage = [f"{found.damage}: {found.message}" for found in self._examination.end(head)]
        if self._strangers:
            damage.append(f"owner: {self._strangers} events are of another owner or execution")
        if self._failure is not None:
            damage.append(f"fold: {self._failure}")
        projected, differences = self._compare(live)
        state = self._replay.state
        return Audited(
            execution_id=state.execution_id,
            tenant_id=state.tenant_id,
            organization_id=state.organization_id,
            source=source,
            events=self._examination.events,
            version=self.version,
            status=str(state.status),
            path=state.path,
            projected=projected,
            envelope_checksum=state.checksum,
            damage=[one[:_DAMAGE_CHARACTERS_MAX] for one in [*damage, *differences]][:DAMAGE_MAX],
        )

    def _compare(self, live: LiveRows | None) -> tuple[Projected, list[str]]:
        if live is None or self._failure is not None:
            return Projected.UNREAD, []
        if live.version == 0:
            return Projected.ABSENT, []
        if live.version != self._replay.state.version:
            return Projected.ELSEWHERE, []
        found, expected = checksum.live_surfaces(live.rows), self._replay.surfaces
        if checksum.checksums(found) == checksum.checksums(expected):
            return Projected.SAME, []
        changes = diffing.compare(_plain(expected), _plain(found))
        return Projected.DIFFERS, [
            f"projection: {'/'.join(one.path)} is {one.kind} against the replay"
            for one in changes[:DAMAGE_MAX]
        ]


def _plain(surfaces: checksum.Surfaces) -> Any:
    return codec.decode(codec.encode(rows.summed_surfaces(surfaces)))
