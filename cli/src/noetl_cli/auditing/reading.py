"""Reads executions from the ledger, or from the archive what has left it, and audits them."""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import groupby

from msgspec import Struct

from noetl_chassis.payload_sealing import read_keys
from noetl_chassis.together import together
from noetl_cli.auditing.shares import Audit, Share
from noetl_cli.settings import AuditAccess
from noetl_contracts import archives
from noetl_contracts.archives import Manifest, Part
from noetl_contracts.errors import NoetlError, Permanent
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger import Head
from noetl_contracts.stored import StoredEvent
from noetl_replay import rows
from noetl_replay.auditing import Audited, Auditor, LiveRows, Projected
from noetl_storage.archive import parquet, units
from noetl_storage.audit_ports import LedgerAudit, ManyHistories
from noetl_storage.payloads import managed
from noetl_storage.payloads.open import open_payloads
from noetl_storage.ports import LedgerReader, Payloads, Projections
from noetl_storage.postgres.audit import PostgresLedgerAudit
from noetl_storage.postgres.database import open_database
from noetl_storage.postgres.ledger import PostgresLedger
from noetl_storage.postgres.projections import PostgresProjections

PAGE_EVENTS = 2000
# So many executions, or events, are held at once.
GROUP_EXECUTIONS_MAX = 200
GROUP_EVENTS_MAX = 20_000
PARTS_MAX = 2
MOVES_MAX = 100
CONNECTIONS_MAX = 4
CONNECT_S = 30.0
MANIFESTS_MAX = 100_000


class Sources(Struct, frozen=True, kw_only=True):
    """What an audit reads; without a ledger everything comes from the archive."""

    audit: LedgerAudit | None = None
    many: ManyHistories | None = None
    ledger: LedgerReader | None = None
    projections: Projections | None = None
    payloads: Payloads | None = None


@asynccontextmanager
async def open_sources(access: AuditAccess) -> AsyncIterator[Sources]:
    """Open what an audit reads; raises what the stores raise."""
    payloads = _payloads(access) if access.payload_url else _nothing()
    async with payloads as store:
        if not access.dsn:
            yield Sources(payloads=store)
            return
        async with open_database(
            access.dsn,
            application_name="noetl-audit",
            connections_max=CONNECTIONS_MAX,
            connect_deadline_s=CONNECT_S,
            must_be_durable=False,  # an audit writes nothing
        ) as database:
            audit = PostgresLedgerAudit(database)
            yield Sources(
                audit=audit,
                many=audit,
                ledger=PostgresLedger(database),
                projections=PostgresProjections(database),
                payloads=store,
            )


@asynccontextmanager
async def _payloads(access: AuditAccess) -> AsyncIterator[Payloads | None]:
    async with open_payloads(
        access.payload_url,
        access_key=access.payload_access_key or None,
        secret_key=access.payload_secret_key or None,
        threads_max=CONNECTIONS_MAX,
        seals=read_keys(access.payload_seal_key, file="", managed=managed.open_keys),
    ) as store:
        yield store


@asynccontextmanager
async def _nothing() -> AsyncIterator[Payloads | None]:
    yield None


async def list_manifests(sources: Sources, share: Share) -> list[Manifest]:
    """Return every finished unit of an owner's archive."""
    if sources.payloads is None:
        return []
    tenant_id, organization_id = share.tenant_id, share.organization_id
    names = await sources.payloads.list_names(
        archives.MANIFESTS, tenant_id=tenant_id, organization_id=organization_id
    )
    found = []
    for name in names[:MANIFESTS_MAX]:
        data = await sources.payloads.find_named(
            name, tenant_id=tenant_id, organization_id=organization_id
        )
        if data is not None:
            found.append(archives.decode_manifest(data))
    return found


async def audit_share(sources: Sources, share: Share) -> AsyncIterator[Audited]:
    """Audit the executions of a share, some at a time."""
    reader = _Archive(sources, share)
    for group in _groups(share.audits):
        auditors = {
            one.execution_id: Auditor(
                one.execution_id,
                tenant_id=share.tenant_id,
                organization_id=share.organization_id,
            )
            for one in group
        }
        lost: dict[ExecutionId, str] = {}
        for one in group:
            if one.manifests:
                try:
                    await _feed_archived(sources, reader, one, auditors[one.execution_id])
                except NoetlError as failure:
                    lost[one.execution_id] = f"archive: {failure}"
        heads = await _feed_ledger(sources, auditors, lost)
        gate = asyncio.Semaphore(CONNECTIONS_MAX)
        async with together() as tasks:
            lives = {
                key: tasks.create_task(_live(sources, key, gate, reads=share.reads_live))
                for key in auditors
            }
        for one in group:
            key = one.execution_id
            found = auditors[key].end(
                heads.get(key) or one.head or one.archived,
                live=lives[key].result(),
                source=_source(one, is_in_ledger=key in heads),
            )
            yield found if key not in lost else _with(found, lost[key])


def _groups(audits: Sequence[Audit]) -> list[list[Audit]]:
    groups: list[list[Audit]] = []
    events = GROUP_EVENTS_MAX
    for one in audits:
        if events >= GROUP_EVENTS_MAX or len(groups[-1]) >= GROUP_EXECUTIONS_MAX:
            groups.append([])
            events = 0
        groups[-1].append(one)
        events += one.events
    return groups


async def _feed_ledger(
    sources: Sources, auditors: dict[ExecutionId, Auditor], lost: dict[ExecutionId, str]
) -> dict[ExecutionId, Head]:
    """Feed what the ledger has; return where it says that each history ends."""
    if sources.audit is None or sources.many is None or sources.ledger is None:
        return {}
    # An event that cannot be read spoils its page: who was on it is read alone further below.
    with suppress(Permanent):
        await _feed_together(sources.many, auditors)
    heads: dict[ExecutionId, Head] = {}
    for _ in range(MOVES_MAX):
        # Histories may go on while they are read: who ends later than what was seen is read on.
        heads = {head.execution_id: head for head in await sources.ledger.list_heads([*auditors])}
        late = [
            key
            for key, head in heads.items()
            if key not in lost and head.version > auditors[key].version
        ]
        moved = 0
        for key in late:
            try:
                moved += await _feed_alone(sources.audit, key, auditors[key])
            except Permanent as failure:
                lost[key] = f"unreadable: {failure}"
        if not moved:
            break
    return heads


async def _feed_together(many: ManyHistories, auditors: dict[ExecutionId, Auditor]) -> None:
    waiting = [key for key, one in auditors.items() if one.version == 0]
    after = (ExecutionId("0"), 0)
    while page := await many.read_many(waiting, after=after, events_max=PAGE_EVENTS):
        # As the query found them: what an event says of its execution may have been changed.
        for place, events in groupby(page, key=lambda found: found[0]):
            auditors[place].feed([event for _, _, event in events])
        after = page[-1][:2]


async def _feed_alone(audit: LedgerAudit, execution_id: ExecutionId, auditor: Auditor) -> int:
    total = 0
    while page := await audit.read_stored(
        execution_id, after_version=auditor.version, events_max=PAGE_EVENTS
    ):
        auditor.feed(page)
        total += len(page)
    return total


async def _feed_archived(
    sources: Sources, archive: "_Archive", audit: Audit, auditor: Auditor
) -> None:
    """Feed what came before the ledger's first event, or all where it has none."""
    until: int | None = None
    if sources.audit is not None:
        first = await sources.audit.read_stored(audit.execution_id, events_max=1)
        until = first[0].stream_version if first else None
    for manifest_id in audit.manifests:
        async for events in archive.read(manifest_id, audit.execution_id):
            fresh = [
                one
                for one in events
                if one.stream_version > auditor.version
                and (until is None or one.stream_version < until)
            ]
            auditor.feed(fresh)


async def _live(
    sources: Sources, execution_id: ExecutionId, gate: asyncio.Semaphore, *, reads: bool
) -> LiveRows | None:
    if sources.projections is None or not reads:
        return None
    async with gate:
        positions = await sources.projections.list_positions([execution_id])
        found = {
            surface: await sources.projections.list_rows(surface, execution_id)
            for surface in rows.SURFACES
        }
        again = await sources.projections.list_positions([execution_id])
    # Rows that moved while they were read are of no version.
    version = positions.get(execution_id, 0)
    return LiveRows(version=version if positions == again else -1, rows=found)


class _Archive:
    """Reads units part by part; neighbours are in the same parts, so the latest are kept."""

    def __init__(self, sources: Sources, share: Share) -> None:
        self._sources = sources
        self._share = share
        self._manifests: dict[str, Manifest] = {}
        self._parts: OrderedDict[str, dict[ExecutionId, list[StoredEvent]]] = OrderedDict()

    async def read(
        self, manifest_id: str, execution_id: ExecutionId
    ) -> AsyncIterator[list[StoredEvent]]:
        """Yield what a unit holds of an execution; raises what the archive raises."""
        manifest = await self._manifest(manifest_id)
        kept = manifest.find(execution_id)
        for number in () if kept is None else kept.parts:
            part = next(one for one in manifest.parts if one.number == number)
            yield (await self._part(manifest, part)).get(execution_id, [])

    async def _manifest(self, manifest_id: str) -> Manifest:
        if manifest_id not in self._manifests:
            found = {
                one.unit.manifest_id: one
                for one in await list_manifests(self._sources, self._share)
            }
            self._manifests = found
        return self._manifests[manifest_id]

    async def _part(self, manifest: Manifest, part: Part) -> dict[ExecutionId, list[StoredEvent]]:
        if part.name not in self._parts:
            assert self._sources.payloads is not None, "a manifest was read from it"
            data = await units.read_part(self._sources.payloads, manifest.unit, part)
            found: dict[ExecutionId, list[StoredEvent]] = {}
            for one in parquet.decode(data):
                found.setdefault(ExecutionId(one.execution_id), []).append(one)
            self._parts[part.name] = found
            while len(self._parts) > PARTS_MAX:
                self._parts.popitem(last=False)
        return self._parts[part.name]


def _source(audit: Audit, *, is_in_ledger: bool) -> str:
    if not audit.manifests:
        return "ledger"
    return "archive+ledger" if is_in_ledger else "archive"


def _with(found: Audited, damage: str) -> Audited:
    return Audited(
        **{
            **{name: getattr(found, name) for name in found.__struct_fields__},
            "damage": [damage, *found.damage],
            "projected": Projected.UNREAD,
        }
    )
