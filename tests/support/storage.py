"""Stores over memory or PostgreSQL, and the smallest histories that fit into them."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from noetl_contracts import codec
from noetl_contracts.events import Event
from noetl_contracts.events.step_events import StepEnter
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, RunId, TenantId
from noetl_contracts.ledger import envelope
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import (
    Append,
    NewMessage,
    Request,
    SettledRequest,
    ShardFence,
    StreamAppend,
)
from noetl_storage.memory.business_objects import MemoryBusinessObjects
from noetl_storage.memory.history_pages import MemoryHistoryPages
from noetl_storage.memory.holds import MemoryHolds
from noetl_storage.memory.identities import (
    MemoryAdministrationLog,
    MemoryIdentities,
    MemoryQuotas,
    MemorySessions,
)
from noetl_storage.memory.leases import MemoryInstances, MemoryShardLeases
from noetl_storage.memory.ledger import MemoryLedger, MemoryLedgerAudit
from noetl_storage.memory.lineage import MemoryLineage, MemoryLineageHistories
from noetl_storage.memory.notifications import MemoryNotifications
from noetl_storage.memory.outbox import MemoryDeadLetterLog, MemoryOutbox, MemoryRequests
from noetl_storage.memory.payload_references import MemoryPayloadReferences
from noetl_storage.memory.projections import MemoryCheckpoints, MemoryProjections
from noetl_storage.memory.registry import (
    MemoryCatalog,
    MemoryCredentials,
    MemoryPast,
    MemorySnapshots,
)
from noetl_storage.memory.states import MemoryStates
from noetl_storage.memory.store import MemoryStore
from noetl_storage.memory.triggers import (
    MemorySchedules,
    MemoryTriggers,
    MemoryWebhooks,
)
from noetl_storage.ports import (
    history_ports,
    identity_ports,
    ledger_ports,
    payload_ports,
    registry_ports,
    retention_ports,
)
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import Database, open_database
from noetl_storage.postgres.ledger.audit import PostgresLedgerAudit
from noetl_storage.postgres.ledger.instances import PostgresInstances
from noetl_storage.postgres.ledger.ledger import PostgresLedger
from noetl_storage.postgres.ledger.lineage import PostgresLineage, PostgresLineageHistories
from noetl_storage.postgres.ledger.outbox import PostgresOutbox
from noetl_storage.postgres.ledger.payload_references import PostgresPayloadReferences
from noetl_storage.postgres.ledger.requests import PostgresRequests
from noetl_storage.postgres.ledger.retention import PostgresHolds
from noetl_storage.postgres.ledger.shards import PostgresShardLeases
from noetl_storage.postgres.ledger.snapshots import PostgresPast, PostgresSnapshots
from noetl_storage.postgres.ledger.states import PostgresStates
from noetl_storage.postgres.read_models.business_objects import PostgresBusinessObjects
from noetl_storage.postgres.read_models.checkpoints import PostgresCheckpoints
from noetl_storage.postgres.read_models.history_pages import PostgresHistoryPages
from noetl_storage.postgres.read_models.projections import PostgresProjections
from noetl_storage.postgres.registry.administration import PostgresAdministrationLog
from noetl_storage.postgres.registry.catalog import PostgresCatalog
from noetl_storage.postgres.registry.credentials import PostgresCredentials
from noetl_storage.postgres.registry.dead_letter_log import PostgresDeadLetterLog
from noetl_storage.postgres.registry.identities import PostgresIdentities, PostgresQuotas
from noetl_storage.postgres.registry.notifications import PostgresNotifications
from noetl_storage.postgres.registry.schedules import PostgresSchedules
from noetl_storage.postgres.registry.sessions import PostgresSessions
from noetl_storage.postgres.registry.triggers import PostgresTriggers
from noetl_storage.postgres.registry.webhooks import PostgresWebhooks
from noetl_storage.postgres.tenant_roles import PostgresTenantRoles

TENANT = TenantId("acme")
ORGANIZATION = OrganizationId("west")
SHARD_COUNT = 4
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PATIENCE_S = 60.0

# Only what holds rows: to empty a table costs its files, and there are two hundred of them.
_EMPTY_ALL = """
do $$
declare
    name text;
    is_held boolean;
    held text[] := '{}';
begin
    for name in
        select format('noetl.%I', c.relname)
        from pg_class as c
        where c.relnamespace = 'noetl'::regnamespace
            and c.relkind in ('r', 'p')
            and not c.relispartition
            and c.relname not in ('schema_migration', 'tenant_role')
    loop
        execute 'select exists (select from ' || name || ')' into is_held;
        if is_held then
            held := array_append(held, name);
        end if;
    end loop;
    if held <> '{}' then
        execute 'truncate ' || array_to_string(held, ', ') || ' cascade';
    end if;
    perform setval(format('%I.%I', s.schemaname, s.sequencename)::regclass, s.start_value, false)
    from pg_sequences as s
    where s.schemaname = 'noetl' and s.last_value is not null;
end
$$
"""


class WallClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class Stores:
    """Every port of storage over one and the same store."""

    ledger_reader: ledger_ports.LedgerReader
    ledger: ledger_ports.LedgerWriter
    requests: ledger_ports.Requests
    outbox: ledger_ports.OutboxDrain
    shards: ledger_ports.ShardLeases
    instances: ledger_ports.Instances
    projections: ledger_ports.Projections
    snapshots: ledger_ports.Snapshots
    catalog: registry_ports.Catalog
    credentials: registry_ports.Credentials
    schedules: registry_ports.Schedules
    notifications: registry_ports.Notifications
    webhooks: registry_ports.Webhooks
    sessions: registry_ports.Sessions
    references: payload_ports.PayloadReferences
    audit: history_ports.LedgerAudit
    past: history_ports.PastSnapshots
    rebuilds: history_ports.ProjectionRebuilds
    triggers: registry_ports.Triggers
    dead_letter_log: registry_ports.DeadLetterLog
    states: ledger_ports.States
    checkpoints: ledger_ports.ShardCheckpoints
    holds: retention_ports.Holds
    lineage: history_ports.LineageRows
    steps: history_ports.LineageHistories
    objects: history_ports.BusinessObjects
    pages: history_ports.HistoryPages
    identities: identity_ports.Identities
    quotas: identity_ports.Quotas
    storage_counts: identity_ports.StorageCounts
    administration: identity_ports.AdministrationLog


def memory_stores() -> Stores:
    store = MemoryStore(clock=WallClock())
    ledger = MemoryLedger(store)
    return Stores(
        ledger_reader=ledger,
        ledger=ledger,
        requests=MemoryRequests(store),
        outbox=MemoryOutbox(store),
        shards=MemoryShardLeases(store),
        instances=MemoryInstances(store),
        projections=MemoryProjections(store),
        snapshots=MemorySnapshots(store),
        catalog=MemoryCatalog(store),
        credentials=MemoryCredentials(store),
        schedules=MemorySchedules(store),
        notifications=MemoryNotifications(store),
        webhooks=MemoryWebhooks(store),
        sessions=MemorySessions(store),
        references=MemoryPayloadReferences(store),
        audit=MemoryLedgerAudit(store),
        past=MemoryPast(store),
        rebuilds=MemoryProjections(store),
        triggers=MemoryTriggers(store),
        dead_letter_log=MemoryDeadLetterLog(store),
        states=MemoryStates(store),
        checkpoints=MemoryCheckpoints(store),
        holds=MemoryHolds(store),
        lineage=MemoryLineage(store),
        steps=MemoryLineageHistories(store),
        objects=MemoryBusinessObjects(store),
        pages=MemoryHistoryPages(store),
        identities=MemoryIdentities(store),
        quotas=MemoryQuotas(store),
        storage_counts=MemoryQuotas(store),
        administration=MemoryAdministrationLog(store),
    )


def postgres_stores(database: Database) -> Stores:
    ledger = PostgresLedger(database)
    return Stores(
        ledger_reader=ledger,
        ledger=ledger,
        requests=PostgresRequests(database),
        outbox=PostgresOutbox(database),
        shards=PostgresShardLeases(database),
        instances=PostgresInstances(database),
        projections=PostgresProjections(database),
        snapshots=PostgresSnapshots(database),
        catalog=PostgresCatalog(database),
        credentials=PostgresCredentials(database),
        schedules=PostgresSchedules(database),
        notifications=PostgresNotifications(database),
        webhooks=PostgresWebhooks(database),
        sessions=PostgresSessions(database),
        references=PostgresPayloadReferences(database),
        audit=PostgresLedgerAudit(database),
        past=PostgresPast(database),
        rebuilds=PostgresProjections(database),
        triggers=PostgresTriggers(database),
        dead_letter_log=PostgresDeadLetterLog(database),
        states=PostgresStates(database),
        checkpoints=PostgresCheckpoints(database),
        holds=PostgresHolds(database),
        lineage=PostgresLineage(database),
        steps=PostgresLineageHistories(database),
        objects=PostgresBusinessObjects(database),
        pages=PostgresHistoryPages(database),
        identities=PostgresIdentities(database),
        quotas=PostgresQuotas(database),
        storage_counts=PostgresQuotas(database),
        administration=PostgresAdministrationLog(database),
    )


@asynccontextmanager
async def migrated(dsn: str) -> AsyncIterator[Database]:
    """An open database at this release's schema."""
    async with open_database(dsn, must_be_durable=False, connect_deadline_s=PATIENCE_S) as database:
        await migrate.apply_migrations(database)
        yield database


@asynccontextmanager
async def emptied(dsn: str) -> AsyncIterator[Database]:
    """An open, migrated database whose tables have just been emptied."""
    async with open_database(dsn, must_be_durable=False, connect_deadline_s=PATIENCE_S) as database:
        await database.execute_statement(_EMPTY_ALL)
        yield database


async def make_reader(dsn: str, tenant_id: str) -> str:
    """Make the role that reads a tenant; roles outlive the databases of a server."""
    role = f"noetl_tenant_{tenant_id}"
    async with open_database(dsn, must_be_durable=False, connect_deadline_s=PATIENCE_S) as database:
        has_role = await database.get_value("select 1 from pg_roles where rolname = $1", role)
        if not has_role:
            await PostgresTenantRoles(database).create_role(tenant_id, "p", connections_max=1)
        await database.execute_statement(
            "insert into noetl.tenant_role (role_name, tenant_id) values ($1, $2) "
            "on conflict do nothing",
            role,
            tenant_id,
        )
    return role


async def eventually(
    ask: Callable[[], Awaitable[Any]], *, what: str, timeout_s: float = PATIENCE_S
) -> Any:
    """Ask until the answer is true-like, and return it."""
    try:
        async with asyncio.timeout(timeout_s):
            while not (answer := await ask()):  # noqa: ASYNC110 - the world sets no event
                await asyncio.sleep(0.01)
            return answer
    except TimeoutError:
        raise AssertionError(f"not within {timeout_s} s: {what}") from None


def an_execution() -> ExecutionId:
    """A fresh identity of this month's size."""
    return ExecutionId(str((1 << 56) + secrets.randbits(55)))


def a_run(step: str = "fetch", activation: int = 1) -> StepEnter:
    return StepEnter(step=step, run_id=RunId(str(activation)), activation=activation)


def sealed(
    execution_id: ExecutionId,
    events: list[Event],
    *,
    after: int = 0,
    checksum: str = codec.CHECKSUM_NONE,
    keys: list[str | None] | None = None,
    **fields: Any,
) -> list[Envelope]:
    """Envelopes of events that follow version `after`, each linked to the one before."""
    chain = []
    for place, event in enumerate(events, start=1):
        version = after + place
        kind, aggregate = envelope.find_aggregate(execution_id, event)
        values = {
            "event_id": EventId(str(int(execution_id) + version)),
            "tenant_id": TENANT,
            "organization_id": ORGANIZATION,
            "execution_id": execution_id,
            "stream_id": f"execution/{execution_id}",
            "stream_version": version,
            "aggregate_id": aggregate,
            "aggregate_type": kind,
            "schema_name": envelope.build_schema_name(event),
            "schema_version": envelope.get_schema_version(event),
            "event_time": NOON + timedelta(milliseconds=version),
            "producer": "test",
            "event": event,
            "idempotency_key": None if keys is None else keys[place - 1],
            **fields,
        }
        chain.append(envelope.seal_envelope(Envelope(**values), checksum))
        checksum = chain[-1].envelope_checksum
    return chain


def a_stream(
    execution_id: ExecutionId, events: list[Event], *, after: int = 0, **fields: Any
) -> StreamAppend:
    """Events that follow version `after` of one execution."""
    return StreamAppend(
        execution_id=execution_id,
        tenant_id=fields.get("tenant_id", TENANT),
        organization_id=fields.get("organization_id", ORGANIZATION),
        expected_version=after,
        envelopes=sealed(execution_id, events, after=after, **fields),
    )


def an_append(
    fence: ShardFence, *streams: StreamAppend, messages: int = 0, **fields: Any
) -> Append:
    """One transaction; `messages` are addressed to the first stream's execution."""
    execution = streams[0].execution_id if streams else an_execution()
    return Append(
        fence=fence,
        streams=list(streams),
        messages=[a_message(execution, place) for place in range(messages)],
        **fields,
    )


def a_message(execution_id: ExecutionId, place: int = 0) -> NewMessage:
    return NewMessage(
        execution_id=execution_id,
        subject="noetl.events.0.acme.west",
        message_id=f"{execution_id}-{place}-{secrets.token_hex(4)}",
        data=b"{}",
    )


def a_request(**fields: Any) -> Request:
    values: dict[str, Any] = {
        "request_id": secrets.token_hex(8),
        "execution_id": an_execution(),
        "tenant_id": TENANT,
        "organization_id": ORGANIZATION,
        "kind": "execution",
        "subject": "noetl.ingest.0.acme.west",
        "data": b'{"facts":[]}',
    }
    return Request(**{**values, **fields})


def settled(request: Request, **others: Any) -> SettledRequest:
    """What a planner says of a request that it has taken in for its execution."""
    said = {name: getattr(request, name) for name in SettledRequest.__struct_fields__}
    return SettledRequest(**{**said, **others})


async def a_fence(stores: Stores, *, owner: str = "planner-1", lease_s: float = 60.0) -> ShardFence:
    """A live claim on one shard."""
    held = await stores.shards.claim_shards(
        owner=owner, lease_s=lease_s, shards_max=1, shard_count=SHARD_COUNT
    )
    lease = held[0]
    return ShardFence(shard=lease.shard, owner=owner, epoch=lease.epoch)
