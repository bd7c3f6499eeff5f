"""One history audited as a whole: its chain, its fold, and the read models that stand for it.

The same code audits one execution or a million: the caller passes the events page by page.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.records import HistoryHead
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_replay import comparison, rows
from noetl_replay.audit.chain import ChainExamination
from noetl_replay.history_replay import HistoryReplay
from noetl_replay.state import build_empty_state

# Of one execution's damage so much is told; the first of it says where to look.
DAMAGE_MAX = 20
_DAMAGE_CHARACTERS_MAX = 500

# What the fold raises on a history that no planner of this release would have written.
_FOLD_FAILURES = (Permanent, LookupError, TypeError, ValueError, AttributeError)


class ProjectionParity(StrEnum):
    """How the read models compare with what the history folds to."""

    SAME = "same"
    DIFFERS = "differs"
    ELSEWHERE = "elsewhere"
    ABSENT = "absent"
    UNREAD = "unread"


class ProjectedRows(Struct, frozen=True, kw_only=True):
    """The rows of every surface, and the version up to which they are projected."""

    version: int
    rows: Mapping[str, Sequence[Mapping[str, Any]]]


class AuditResult(Struct, frozen=True, kw_only=True):
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
    projected: ProjectionParity
    envelope_checksum: str
    damage: list[str]

    @property
    def is_ok(self) -> bool:
        """Tell whether nothing was found."""
        return not self.damage


class HistoryAuditor:
    """Audits one history, fed in order; holds its state, its rows and a window of its events."""

    def __init__(
        self, execution_id: ExecutionId, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> None:
        self._examination = ChainExamination()
        self._replay = HistoryReplay(build_empty_state(execution_id, tenant_id, organization_id))
        self._failure: str | None = None
        self._foreign_events = 0

    @property
    def last_version(self) -> int:
        """Return the version of the last event that was fed, 0 before the first."""
        last = self._examination.last
        return 0 if last is None else last.stream_version

    def feed_events(self, page: Sequence[StoredEvent]) -> None:
        """Follow the chain through what comes next, and fold it."""
        self._examination.feed_events(page)
        state = self._replay.state
        owner = (state.execution_id, state.tenant_id, state.organization_id)
        self._foreign_events += sum(
            (item.execution_id, item.tenant_id, item.organization_id) != owner for item in page
        )
        if self._failure is not None:
            return
        try:
            self._replay.feed_events([stored_event.read_envelope(item) for item in page])
        except _FOLD_FAILURES as failure:
            self._failure = (
                f"does not fold behind version {self._replay.state.version}: "
                f"{type(failure).__name__}: {failure}"
            )

    def finish_audit(
        self, head: HistoryHead | None, *, projected_rows: ProjectedRows | None, source: str
    ) -> AuditResult:
        """Say what was found; without `live` the read models were not read."""
        damage = [
            f"{chain_finding.damage}: {chain_finding.message}"
            for chain_finding in self._examination.finish_examination(head)
        ]
        if self._foreign_events:
            damage.append(f"owner: {self._foreign_events} events are of another owner or execution")
        if self._failure is not None:
            damage.append(f"fold: {self._failure}")
        projected, differences = self._compare_rows(projected_rows)
        state = self._replay.state
        return AuditResult(
            execution_id=state.execution_id,
            tenant_id=state.tenant_id,
            organization_id=state.organization_id,
            source=source,
            events=self._examination.events,
            version=self.last_version,
            status=str(state.status),
            path=state.path,
            projected=projected,
            envelope_checksum=state.checksum,
            damage=[item[:_DAMAGE_CHARACTERS_MAX] for item in [*damage, *differences]][:DAMAGE_MAX],
        )

    def _compare_rows(
        self, projected_rows: ProjectedRows | None
    ) -> tuple[ProjectionParity, list[str]]:
        if projected_rows is None or self._failure is not None:
            return ProjectionParity.UNREAD, []
        if projected_rows.version == 0:
            return ProjectionParity.ABSENT, []
        if projected_rows.version != self._replay.state.version:
            return ProjectionParity.ELSEWHERE, []
        live_surfaces, expected = (
            comparison.index_live_surfaces(projected_rows.rows),
            self._replay.surfaces,
        )
        if comparison.compute_surface_checksums(
            live_surfaces
        ) == comparison.compute_surface_checksums(expected):
            return ProjectionParity.SAME, []
        changes = comparison.compare_values(
            _to_plain_values(expected), _to_plain_values(live_surfaces)
        )
        return ProjectionParity.DIFFERS, [
            f"projection: {'/'.join(change.path)} is {change.kind} against the replay"
            for change in changes[:DAMAGE_MAX]
        ]


def _to_plain_values(surfaces: comparison.Surfaces) -> Any:
    return codec.decode_json(codec.encode_json(rows.select_checksum_surfaces(surfaces)))
