"""Reads executions from the ledger, or from the archive what has left it, and audits them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import groupby

from msgspec import Struct

from noetl_chassis.seals.payload_seal import read_payload_keys
from noetl_chassis.task_group import open_task_group
from noetl_cli.audit.shares import AuditShare, ExecutionAudit
from noetl_cli.settings import AuditAccess
from noetl_contracts.errors import NoetlError, Permanent
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import archive_format
from noetl_contracts.ledger.archive_format import ArchiveManifest, ArchivePart
from noetl_contracts.ledger.records import HistoryHead
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_contracts.lru_cache import LruCache
from noetl_replay import rows
from noetl_replay.audit.history_audit import (
    AuditResult,
    HistoryAuditor,
    ProjectedRows,
    ProjectionParity,
)
from noetl_storage.archive import parquet, units
from noetl_storage.payloads import master_keys
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.ports.history_ports import HistoriesReader, LedgerAudit
from noetl_storage.ports.ledger_ports import LedgerReader, Payloads, Projections
from noetl_storage.postgres.database import open_database
from noetl_storage.postgres.ledger.audit import PostgresLedgerAudit
from noetl_storage.postgres.ledger.ledger import PostgresLedger
from noetl_storage.postgres.read_models.projections import PostgresProjections

PAGE_EVENTS = 2000
# So many executions, or events, are held at once.
GROUP_EXECUTIONS_MAX = 200
GROUP_EVENTS_MAX = 20_000
PARTS_MAX = 2
MOVES_MAX = 100
CONNECTIONS_MAX = 4
CONNECT_S = 30.0
MANIFESTS_MAX = 100_000


class AuditSources(Struct, frozen=True, kw_only=True):
    """What an audit reads; without a ledger everything comes from the archive."""

    audit: LedgerAudit | None = None
    many: HistoriesReader | None = None
    ledger: LedgerReader | None = None
    projections: Projections | None = None
    payloads: Payloads | None = None


@asynccontextmanager
async def open_sources(access: AuditAccess) -> AsyncIterator[AuditSources]:
    """Open what an audit reads; raises what the stores raise."""
    payloads = _open_payload_store(access) if access.payload_url else _open_no_store()
    async with payloads as store:
        if not access.dsn:
            yield AuditSources(payloads=store)
            return
        async with open_database(
            access.dsn,
            application_name="noetl-audit",
            connections_max=CONNECTIONS_MAX,
            connect_deadline_s=CONNECT_S,
            must_be_durable=False,  # an audit writes nothing
        ) as database:
            audit = PostgresLedgerAudit(database)
            yield AuditSources(
                audit=audit,
                many=audit,
                ledger=PostgresLedger(database),
                projections=PostgresProjections(database),
                payloads=store,
            )


@asynccontextmanager
async def _open_payload_store(access: AuditAccess) -> AsyncIterator[Payloads | None]:
    async with open_payloads(
        access.payload_url,
        access_key=access.payload_access_key or None,
        secret_key=access.payload_secret_key or None,
        threads_max=CONNECTIONS_MAX,
        seals=read_payload_keys(
            access.payload_seal_key, file="", managed=master_keys.open_managed_keys
        ),
    ) as store:
        yield store


@asynccontextmanager
async def _open_no_store() -> AsyncIterator[Payloads | None]:
    yield None


async def list_manifests(sources: AuditSources, share: AuditShare) -> list[ArchiveManifest]:
    """Return every finished unit of an owner's archive."""
    if sources.payloads is None:
        return []
    tenant_id, organization_id = share.tenant_id, share.organization_id
    names = await sources.payloads.list_names(
        archive_format.MANIFESTS, tenant_id=tenant_id, organization_id=organization_id
    )
    archive_manifests = []
    for name in names[:MANIFESTS_MAX]:
        data = await sources.payloads.find_named(
            name, tenant_id=tenant_id, organization_id=organization_id
        )
        if data is not None:
            archive_manifests.append(archive_format.decode_manifest(data))
    return archive_manifests


async def audit_share(sources: AuditSources, share: AuditShare) -> AsyncIterator[AuditResult]:
    """Audit the executions of a share, some at a time."""
    reader = _ArchiveReader(sources, share)
    for group in _group_audits(share.audits):
        auditors = {
            item.execution_id: HistoryAuditor(
                item.execution_id,
                tenant_id=share.tenant_id,
                organization_id=share.organization_id,
            )
            for item in group
        }
        lost: dict[ExecutionId, str] = {}
        for item in group:
            if item.manifests:
                try:
                    await _feed_from_archive(sources, reader, item, auditors[item.execution_id])
                except NoetlError as failure:
                    lost[item.execution_id] = f"archive: {failure}"
        heads = await _feed_from_ledger(sources, auditors, lost)
        gate = asyncio.Semaphore(CONNECTIONS_MAX)
        async with open_task_group() as tasks:
            lives = {
                key: tasks.create_task(_read_live_rows(sources, key, gate, reads=share.reads_live))
                for key in auditors
            }
        for item in group:
            key = item.execution_id
            audit = auditors[key].finish_audit(
                heads.get(key) or item.head or item.archived,
                projected_rows=lives[key].result(),
                source=_name_source(item, is_in_ledger=key in heads),
            )
            yield audit if key not in lost else _add_damage(audit, lost[key])


def _group_audits(audits: Sequence[ExecutionAudit]) -> list[list[ExecutionAudit]]:
    groups: list[list[ExecutionAudit]] = []
    events = GROUP_EVENTS_MAX
    for audit in audits:
        if events >= GROUP_EVENTS_MAX or len(groups[-1]) >= GROUP_EXECUTIONS_MAX:
            groups.append([])
            events = 0
        groups[-1].append(audit)
        events += audit.event_count
    return groups


async def _feed_from_ledger(
    sources: AuditSources, auditors: dict[ExecutionId, HistoryAuditor], lost: dict[ExecutionId, str]
) -> dict[ExecutionId, HistoryHead]:
    """Feed what the ledger has; return where it says that each history ends."""
    if sources.audit is None or sources.many is None or sources.ledger is None:
        return {}
    # An event that cannot be read spoils its page: who was on it is read alone further below.
    with suppress(Permanent):
        await _feed_pages(sources.many, auditors)
    heads: dict[ExecutionId, HistoryHead] = {}
    for _ in range(MOVES_MAX):
        # Histories may go on while they are read: who ends later than what was seen is read on.
        heads = {head.execution_id: head for head in await sources.ledger.list_heads([*auditors])}
        late = [
            key
            for key, head in heads.items()
            if key not in lost and head.version > auditors[key].last_version
        ]
        moved = 0
        for key in late:
            try:
                moved += await _feed_history(sources.audit, key, auditors[key])
            except Permanent as failure:
                lost[key] = f"unreadable: {failure}"
        if not moved:
            break
    return heads


async def _feed_pages(many: HistoriesReader, auditors: dict[ExecutionId, HistoryAuditor]) -> None:
    waiting = [key for key, item in auditors.items() if item.last_version == 0]
    after = (ExecutionId("0"), 0)
    while page := await many.read_histories(waiting, after=after, events_max=PAGE_EVENTS):
        # As the query found them: what an event says of its execution may have been changed.
        for place, events in groupby(page, key=lambda entry: entry[0]):
            auditors[place].feed_events([event for _, _, event in events])
        after = page[-1][:2]


async def _feed_history(
    audit: LedgerAudit, execution_id: ExecutionId, auditor: HistoryAuditor
) -> int:
    total = 0
    while page := await audit.read_stored_events(
        execution_id, after_version=auditor.last_version, events_max=PAGE_EVENTS
    ):
        auditor.feed_events(page)
        total += len(page)
    return total


async def _feed_from_archive(
    sources: AuditSources, archive: "_ArchiveReader", audit: ExecutionAudit, auditor: HistoryAuditor
) -> None:
    """Feed what came before the ledger's first event, or all where it has none."""
    until: int | None = None
    if sources.audit is not None:
        first = await sources.audit.read_stored_events(audit.execution_id, events_max=1)
        until = first[0].stream_version if first else None
    for manifest_id in audit.manifests:
        async for events in archive.read_events(manifest_id, audit.execution_id):
            fresh = [
                event
                for event in events
                if event.stream_version > auditor.last_version
                and (until is None or event.stream_version < until)
            ]
            auditor.feed_events(fresh)


async def _read_live_rows(
    sources: AuditSources, execution_id: ExecutionId, gate: asyncio.Semaphore, *, reads: bool
) -> ProjectedRows | None:
    if sources.projections is None or not reads:
        return None
    async with gate:
        positions = await sources.projections.list_positions([execution_id])
        live_rows = {
            surface: await sources.projections.list_rows(surface, execution_id)
            for surface in rows.SURFACES
        }
        again = await sources.projections.list_positions([execution_id])
    # Rows that moved while they were read are of no version.
    version = positions.get(execution_id, 0)
    return ProjectedRows(version=version if positions == again else -1, rows=live_rows)


class _ArchiveReader:
    """Reads units part by part; neighbours are in the same parts, so the latest are kept."""

    def __init__(self, sources: AuditSources, share: AuditShare) -> None:
        self._sources = sources
        self._share = share
        self._manifests: dict[str, ArchiveManifest] = {}
        self._parts = LruCache[str, dict[ExecutionId, list[StoredEvent]]](entries_max=PARTS_MAX)

    async def read_events(
        self, manifest_id: str, execution_id: ExecutionId
    ) -> AsyncIterator[list[StoredEvent]]:
        """Yield what a unit holds of an execution; raises what the archive raises."""
        manifest = await self._get_manifest(manifest_id)
        history = manifest.find_history(execution_id)
        for number in () if history is None else history.parts:
            part = next(item for item in manifest.parts if item.number == number)
            yield (await self._read_part(manifest, part)).get(execution_id, [])

    async def _get_manifest(self, manifest_id: str) -> ArchiveManifest:
        if manifest_id not in self._manifests:
            manifest_by_id = {
                manifest.unit.manifest_id: manifest
                for manifest in await list_manifests(self._sources, self._share)
            }
            self._manifests = manifest_by_id
        return self._manifests[manifest_id]

    async def _read_part(
        self, manifest: ArchiveManifest, part: ArchivePart
    ) -> dict[ExecutionId, list[StoredEvent]]:
        events_by_execution = self._parts.find_value(part.name)
        if events_by_execution is None:
            assert self._sources.payloads is not None, "a manifest was read from it"
            data = await units.read_part(self._sources.payloads, manifest.unit, part)
            events_by_execution = {}
            for item in parquet.decode(data):
                events_by_execution.setdefault(ExecutionId(item.execution_id), []).append(item)
            self._parts.keep_value(part.name, events_by_execution)
        return events_by_execution


def _name_source(audit: ExecutionAudit, *, is_in_ledger: bool) -> str:
    if not audit.manifests:
        return "ledger"
    return "archive+ledger" if is_in_ledger else "archive"


def _add_damage(audit_result: AuditResult, damage: str) -> AuditResult:
    return AuditResult(
        **{
            **{name: getattr(audit_result, name) for name in audit_result.__struct_fields__},
            "damage": [damage, *audit_result.damage],
            "projected": ProjectionParity.UNREAD,
        }
    )
