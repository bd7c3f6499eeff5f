"""Takes histories whose time is over out of the ledger: planned, archived, verified, and gone.

Each step is durable before the next one begins and does nothing the second time, so that the next
process can continue after a crash. Nothing is removed before it was read back.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import NoetlError, Permanent
from noetl_contracts.ledger import stored_event, upcasters
from noetl_contracts.ledger.archive_format import ArchivedHistory, ArchiveManifest, ManifestUnit
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_storage.archive import units
from noetl_storage.ports.errors import PayloadMissing, RetentionRefused
from noetl_storage.ports.history_ports import LedgerAudit
from noetl_storage.ports.ledger_ports import Payloads
from noetl_storage.ports.payload_ports import Owner
from noetl_storage.ports.retention_ports import (
    ArchiveUnit,
    DueHistories,
    Retention,
    RetentionAction,
    RetentionPolicy,
    UnitStatus,
    VersionSpan,
)

_PAGE_EVENTS = 1000
_PAGE_UNITS = 100
# So many histories are asked for at once, each a page at a time.
_TOGETHER = 4
_DAY_S = 86_400.0
_BY_DEFAULT = "default"

# Of all processes one does this at a time.
ROLE = "archivist"


class RetentionTerms(Struct, frozen=True, kw_only=True):
    """What holds for owners without a policy, and how much is done at once.

    Without `can_delete` verified histories wait until their whole partition can go, unless they
    are in the one for executions that no month's partition was made for.
    """

    keep_days: int | None = None
    action: RetentionAction = RetentionAction.ARCHIVE
    can_delete: bool = False
    histories_max: int = 500
    events_max: int = 200_000
    deleted_max: int = 100


class RetentionPlan(Struct, frozen=True, kw_only=True):
    """What would be done for an owner."""

    owner: Owner
    policy: RetentionPolicy | None
    due: list[DueHistories]


class UnitProgress(Struct, frozen=True, kw_only=True):
    """A unit that has come to a status, and what left the ledger on the way there."""

    unit: ArchiveUnit
    status: UnitStatus
    histories: int = 0
    events: int = 0


Tell = Callable[[UnitProgress], None]


class Archivist:
    """Owns the way out of the ledger; several at once do no harm."""

    def __init__(
        self,
        *,
        retention: Retention,
        audit: LedgerAudit,
        store: Payloads,
        terms: RetentionTerms,
        fold_version: int,
        who: str,
    ) -> None:
        self._retention = retention
        self._audit = audit
        self._store = store
        self._terms = terms
        self._fold_version = fold_version
        self._who = who

    async def preview_plans(self) -> list[RetentionPlan]:
        """Say what a run would begin with, and change nothing."""
        plans = []
        for owner in await self._retention.list_owners():
            policy = await self._find_policy(owner)
            due_histories: list[DueHistories] = []
            if policy is not None and policy.action is not RetentionAction.KEEP:
                due_histories = await self._retention.count_due(
                    owner, keep_s=policy.keep_days * _DAY_S
                )
            plans.append(RetentionPlan(owner=owner, policy=policy, due=due_histories))
        return plans

    async def list_open_units(self) -> list[ArchiveUnit]:
        """Return the units that are not done with."""
        archive_units: list[ArchiveUnit] = []
        while page := await self._retention.list_open_units(
            after=archive_units[-1].manifest_id if archive_units else None, units_max=_PAGE_UNITS
        ):
            archive_units += page
        return archive_units

    async def archive_all_due(self, tell: Tell) -> None:
        """Resume what was begun, do what is due, and then take out what was verified.

        What is wrong with one unit keeps no other one; it is raised at the end.
        """
        doubts: list[NoetlError] = []
        for unit in await self.list_open_units():
            await _collect_doubt(self._archive_unit(unit, tell), doubts)
        for owner in await self._retention.list_owners():
            await self._archive_due(owner, tell, doubts)
        # A partition can go once the last of its units is verified.
        for unit in await self.list_open_units():
            await _collect_doubt(self._compact_unit(unit, tell), doubts)
        if doubts:
            raise doubts[0]

    async def _find_policy(self, owner: Owner) -> RetentionPolicy | None:
        retention_policy = await self._retention.find_policy(owner)
        if retention_policy is not None or self._terms.keep_days is None:
            return retention_policy
        return RetentionPolicy(
            tenant_id=owner.tenant_id,
            organization_id=owner.organization_id,
            keep_days=self._terms.keep_days,
            action=self._terms.action,
            set_by=_BY_DEFAULT,
        )

    async def _archive_due(self, owner: Owner, tell: Tell, doubts: list[NoetlError]) -> None:
        policy = await self._find_policy(owner)
        if policy is None or policy.action is RetentionAction.KEEP:
            return
        while unit := await self._retention.plan_unit(
            owner,
            action=policy.action,
            keep_s=policy.keep_days * _DAY_S,
            histories_max=self._terms.histories_max,
            events_max=self._terms.events_max,
            fold_version=self._fold_version,
            upcaster_digest=upcasters.digest_registry(),
            who=self._who,
        ):
            tell(UnitProgress(unit=unit, status=UnitStatus.PLANNED))
            await _collect_doubt(self._archive_unit(unit, tell), doubts)

    async def _archive_unit(self, unit: ArchiveUnit, tell: Tell) -> None:
        """Bring a unit to where it is verified."""
        if unit.status is UnitStatus.PLANNED:
            manifest = await self._write_unit(unit)
            await self._retention.advance_unit(
                unit.manifest_id,
                status=UnitStatus.ARCHIVED,
                manifest_sha256=codec.digest_hex(codec.encode_json(manifest)),
            )
            tell(UnitProgress(unit=unit, status=UnitStatus.ARCHIVED))
        if unit.status in (UnitStatus.PLANNED, UnitStatus.ARCHIVED):
            await self._verify_unit(unit)
            await self._retention.advance_unit(unit.manifest_id, status=UnitStatus.VERIFIED)
            tell(UnitProgress(unit=unit, status=UnitStatus.VERIFIED))

    async def _write_unit(self, unit: ArchiveUnit) -> ArchiveManifest:
        spans = await self._retention.list_spans(unit.manifest_id)
        if unit.action is RetentionAction.DROP:
            archived_histories = [
                _build_archived_history(span, at=unit.planned_at)
                for span in spans
                if await self._is_history_sound(unit, span, await self._read_page(span))
            ]
            return await units.write_dropped_manifest(
                self._store, build_manifest_unit(unit), archived_histories
            )
        return await units.write_unit(
            self._store,
            build_manifest_unit(unit),
            self._iterate_sound_events(unit, spans),
            previous={span.execution_id: span.previous for span in spans},
        )

    async def _iterate_sound_events(
        self, unit: ArchiveUnit, spans: list[VersionSpan]
    ) -> AsyncIterator[StoredEvent]:
        """Yield what is archived; most histories are one page, which is read once."""
        for at in range(0, len(spans), _TOGETHER):
            span_group = spans[at : at + _TOGETHER]
            first_pages = await asyncio.gather(*(self._read_page(span) for span in span_group))
            for span, first_page in zip(span_group, first_pages, strict=True):
                if await self._is_history_sound(unit, span, first_page):
                    async for page in self._iterate_pages(span, first_page):
                        for item in page:
                            yield item

    async def _is_history_sound(
        self, unit: ArchiveUnit, span: VersionSpan, first: list[StoredEvent]
    ) -> bool:
        """Tell whether a history is what was sealed, before any of it is written; else leave it."""
        reason = await self._find_doubt(span, first)
        if reason is not None:
            await self._retention.leave_history_out(
                unit.manifest_id, span.execution_id, reason=reason
            )
        return reason is None

    async def _find_doubt(self, span: VersionSpan, first: list[StoredEvent]) -> str | None:
        version, checksum = span.first_version - 1, span.previous
        async for page in self._iterate_pages(span, first):
            for item in page:
                if item.altered or not stored_event.is_stored_event_sealed(
                    item, checksum, version=version + 1
                ):
                    return (
                        f"version {version + 1} is not what was sealed there; see: "
                        f"noetl audit verify {span.execution_id}"
                    )
                version, checksum = item.stream_version, item.envelope_checksum
        if (version, checksum) == (span.last_version, span.checksum):
            return None
        return f"the history ends at version {version} and not at {span.last_version}"

    async def _iterate_pages(
        self, span: VersionSpan, first: list[StoredEvent]
    ) -> AsyncIterator[list[StoredEvent]]:
        page = first
        while page:
            yield page
            page = await self._read_page(span, after=page[-1].stream_version)

    async def _read_page(self, span: VersionSpan, *, after: int | None = None) -> list[StoredEvent]:
        after = span.first_version - 1 if after is None else after
        if after >= span.last_version:
            return []
        return await self._audit.read_stored_events(
            span.execution_id,
            after_version=after,
            events_max=min(_PAGE_EVENTS, span.last_version - after),
        )

    async def _verify_unit(self, unit: ArchiveUnit) -> None:
        """Read a unit back, and compare it with what was planned."""
        manifest = await units.find_manifest(self._store, build_manifest_unit(unit))
        if manifest is None:
            raise RetentionRefused(
                f"the manifest of unit {unit.manifest_id} is not in the payload store any more: "
                "nothing leaves the ledger for it"
            )
        if not manifest.is_dropped:
            await units.verify_unit(self._store, manifest)
        planned_histories = {
            (span.execution_id, span.first_version, span.last_version, span.checksum)
            for span in await self._retention.list_spans(unit.manifest_id)
        }
        histories = {
            (history.execution_id, history.first_version, history.last_version, history.checksum)
            for history in manifest.histories
        }
        if planned_histories != histories or manifest.is_dropped != (
            unit.action is RetentionAction.DROP
        ):
            raise RetentionRefused(
                f"the manifest of unit {unit.manifest_id} names other histories than were planned"
            )

    async def _compact_unit(self, unit: ArchiveUnit, tell: Tell) -> None:
        """Take steps as long as one leads on."""
        status = unit.status
        while status in (UnitStatus.VERIFIED, UnitStatus.DETACHED):
            compaction = await self._retention.compact_unit(
                unit.manifest_id,
                can_delete=self._terms.can_delete,
                histories_max=self._terms.deleted_max,
            )
            if compaction.status is status and not compaction.histories:
                return
            status = compaction.status
            tell(
                UnitProgress(
                    unit=unit,
                    status=status,
                    histories=compaction.histories,
                    events=compaction.events,
                )
            )


async def _collect_doubt(step: Awaitable[None], doubts: list[NoetlError]) -> None:
    """Let a unit that is not as it should be stay where it is; a store that is away ends it all."""
    try:
        await step
    except (Permanent, PayloadMissing) as failure:
        doubts.append(failure)


def build_manifest_unit(unit: ArchiveUnit) -> ManifestUnit:
    """Return what the archive's manifest says of a unit."""
    return ManifestUnit(
        manifest_id=unit.manifest_id,
        tenant_id=unit.tenant_id,
        organization_id=unit.organization_id,
        month=unit.month,
        planned_at=unit.planned_at,
        fold_version=unit.fold_version,
        upcaster_digest=unit.upcaster_digest,
    )


def _build_archived_history(span: VersionSpan, *, at: datetime) -> ArchivedHistory:
    return ArchivedHistory(
        execution_id=span.execution_id,
        first_version=span.first_version,
        last_version=span.last_version,
        previous=span.previous,
        checksum=span.checksum,
        began_at=at,
        ended_at=at,
        parts=[],
    )
