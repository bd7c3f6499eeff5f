"""Stores over memory or PostgreSQL, and the smallest histories that fit into them."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from noetl_contracts import codec, envelope
from noetl_contracts.envelope import Envelope
from noetl_contracts.events import Event
from noetl_contracts.events.step import StepEnter
from noetl_contracts.ids import EventId, ExecutionId, OrganizationId, RunId, TenantId
from noetl_contracts.ledger import (
    Append,
    NewMessage,
    Request,
    SettledRequest,
    ShardFence,
    StreamAppend,
)
from noetl_storage import (
    audit_ports,
    dead_letter_ports,
    epoch_ports,
    lineage_ports,
    object_ports,
    page_ports,
    payload_ports,
    ports,
    registry_ports,
    retention_ports,
    trigger_ports,
)
from noetl_storage.memory.audit import MemoryLedgerAudit
from noetl_storage.memory.checkpoints import MemoryCheckpoints
from noetl_storage.memory.dead_letter_log import MemoryDeadLetterLog
from noetl_storage.memory.holds import MemoryHolds
from noetl_storage.memory.leases import MemoryInstances, MemoryShardLeases
from noetl_storage.memory.ledger import MemoryLedger
from noetl_storage.memory.lineage import MemoryLineage, MemoryLineageHistories
from noetl_storage.memory.objects import MemoryObjects
from noetl_storage.memory.outbox import MemoryOutbox, MemoryRequests
from noetl_storage.memory.pages import MemoryHistoryPages
from noetl_storage.memory.payload_references import MemoryPayloadReferences
from noetl_storage.memory.projections import MemoryProjections
from noetl_storage.memory.registry import (
    MemoryCatalog,
    MemoryCredentials,
    MemoryPast,
    MemorySnapshots,
)
from noetl_storage.memory.schedules import MemorySchedules
from noetl_storage.memory.store import MemoryStore
from noetl_storage.memory.triggers import MemoryTriggers
from noetl_storage.memory.webhooks import MemoryWebhooks
from noetl_storage.postgres import migrate
from noetl_storage.postgres.audit import PostgresLedgerAudit
from noetl_storage.postgres.catalog import PostgresCatalog
from noetl_storage.postgres.checkpoints import PostgresCheckpoints
from noetl_storage.postgres.credentials import PostgresCredentials
from noetl_storage.postgres.database import Database, open_database
from noetl_storage.postgres.dead_letter_log import PostgresDeadLetterLog
from noetl_storage.postgres.instances import PostgresInstances
from noetl_storage.postgres.ledger import PostgresLedger
from noetl_storage.postgres.lineage import PostgresLineage, PostgresLineageHistories
from noetl_storage.postgres.objects import PostgresObjects
from noetl_storage.postgres.outbox import PostgresOutbox
from noetl_storage.postgres.pages import PostgresHistoryPages
from noetl_storage.postgres.payload_references import PostgresPayloadReferences
from noetl_storage.postgres.projections import PostgresProjections
from noetl_storage.postgres.requests import PostgresRequests
from noetl_storage.postgres.retention import PostgresHolds
from noetl_storage.postgres.schedules import PostgresSchedules
from noetl_storage.postgres.shards import PostgresShardLeases
from noetl_storage.postgres.snapshots import PostgresPast, PostgresSnapshots
from noetl_storage.postgres.triggers import PostgresTriggers
from noetl_storage.postgres.webhooks import PostgresWebhooks

TENANT = TenantId("acme")
ORGANIZATION = OrganizationId("west")
SHARD_COUNT = 4
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PATIENCE_S = 10.0

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
            and c.relname <> 'schema_migration'
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

    ledger_reader: ports.LedgerReader
    ledger: ports.LedgerWriter
    requests: ports.Requests
    outbox: ports.OutboxDrain
    shards: ports.ShardLeases
    instances: ports.Instances
    projections: ports.Projections
    snapshots: ports.Snapshots
    catalog: registry_ports.Catalog
    credentials: registry_ports.Credentials
    schedules: trigger_ports.Schedules
    webhooks: trigger_ports.Webhooks
    references: payload_ports.PayloadReferences
    audit: audit_ports.LedgerAudit
    past: audit_ports.Past
    rebuilds: audit_ports.Rebuilds
    triggers: trigger_ports.Triggers
    dead_letter_log: dead_letter_ports.DeadLetterLog
    checkpoints: epoch_ports.Checkpoints
    holds: retention_ports.Holds
    lineage: lineage_ports.LineageRows
    steps: lineage_ports.LineageHistories
    objects: object_ports.ObjectRows
    pages: page_ports.HistoryPages


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
        webhooks=MemoryWebhooks(store),
        references=MemoryPayloadReferences(store),
        audit=MemoryLedgerAudit(store),
        past=MemoryPast(store),
        rebuilds=MemoryProjections(store),
        triggers=MemoryTriggers(store),
        dead_letter_log=MemoryDeadLetterLog(store),
        checkpoints=MemoryCheckpoints(store),
        holds=MemoryHolds(store),
        lineage=MemoryLineage(store),
        steps=MemoryLineageHistories(store),
        objects=MemoryObjects(store),
        pages=MemoryHistoryPages(store),
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
        webhooks=PostgresWebhooks(database),
        references=PostgresPayloadReferences(database),
        audit=PostgresLedgerAudit(database),
        past=PostgresPast(database),
        rebuilds=PostgresProjections(database),
        triggers=PostgresTriggers(database),
        dead_letter_log=PostgresDeadLetterLog(database),
        checkpoints=PostgresCheckpoints(database),
        holds=PostgresHolds(database),
        lineage=PostgresLineage(database),
        steps=PostgresLineageHistories(database),
        objects=PostgresObjects(database),
        pages=PostgresHistoryPages(database),
    )


@asynccontextmanager
async def migrated(dsn: str) -> AsyncIterator[Database]:
    """An open database at this release's schema."""
    async with open_database(dsn, must_be_durable=False, connect_deadline_s=PATIENCE_S) as database:
        await migrate.migrate(database)
        yield database


@asynccontextmanager
async def emptied(dsn: str) -> AsyncIterator[Database]:
    """An open, migrated database whose tables have just been emptied."""
    async with open_database(dsn, must_be_durable=False, connect_deadline_s=PATIENCE_S) as database:
        await database.execute(_EMPTY_ALL)
        yield database


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
        kind, aggregate = envelope.aggregate_of(execution_id, event)
        values = {
            "event_id": EventId(str(int(execution_id) + version)),
            "tenant_id": TENANT,
            "organization_id": ORGANIZATION,
            "execution_id": execution_id,
            "stream_id": f"execution/{execution_id}",
            "stream_version": version,
            "aggregate_id": aggregate,
            "aggregate_type": kind,
            "schema_name": envelope.schema_name(event),
            "schema_version": envelope.schema_version(event),
            "event_time": NOON + timedelta(milliseconds=version),
            "producer": "test",
            "event": event,
            "idempotency_key": None if keys is None else keys[place - 1],
            **fields,
        }
        chain.append(envelope.seal(Envelope(**values), checksum))
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
    held = await stores.shards.claim(
        owner=owner, lease_s=lease_s, shards_max=1, shard_count=SHARD_COUNT
    )
    lease = held[0]
    return ShardFence(shard=lease.shard, owner=owner, epoch=lease.epoch)
