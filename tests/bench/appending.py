"""Appending to the ledger beside the raw multi-row insert of the same rows into an equal table; the outbox after it."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
from msgspec import structs
from tests.bench.cpu import family_cpu_s
from tests.bench.spread import spread
from tests.support.builders import History, Slots
from tests.support.bus import jetstream_bus
from tests.support.servers import NatsServer, PostgresServer, nats_server, postgres_server
from tests.support.storage import Stores, a_fence, an_append, migrated, postgres_stores

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import Append, NewMessage, ShardFence
from noetl_outbox.service import OutboxPublisher
from noetl_storage.postgres import event_rows
from noetl_storage.postgres.database import Database

BATCH_EVENTS = 500
BATCHES = 20
ROUNDS = 5
MESSAGES = 5_000
MESSAGE_BYTES = 400
COLUMNS = (
    "event_id, execution_id, stream_version, tenant_id, organization_id, stream_id, aggregate_type,"
    " aggregate_id, event_type, schema_name, schema_version, event_time, producer, causation_id,"
    " correlation_id, idempotency_key, node_name, node_id, status, stage_id, frame_id, command_id,"
    " context, result, error, payload_ref, meta, envelope_checksum, exact"
)
TYPES = (
    *("bigint", "bigint", "bigint", "text", "text", "text", "text", "text", "text", "text"),
    *("integer", "timestamptz", "text", "text", "text", "text", "text", "text", "text"),
    *("bigint", "bigint", "bigint", "text", "text", "text", "text", "text", "text", "text"),
)
JSON_COLUMNS = ("context", "result", "error", "payload_ref", "meta")
# The same columns, checks, defaults and indexes, without partitions.
EQUAL_TABLE = "CREATE TABLE IF NOT EXISTS noetl.bench_event (LIKE noetl.event INCLUDING ALL)"


def raw_insert() -> str:
    """Write the insert of many rows that the ledger is compared with."""
    names = COLUMNS.split(", ")
    chosen = ", ".join(f"e.{name}{'::jsonb' * (name in JSON_COLUMNS)}" for name in names)
    arrays = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(TYPES, start=1))
    return (
        f"INSERT INTO noetl.bench_event ({COLUMNS})"  # noqa: S608 - names of our own
        f" SELECT {chosen} FROM unnest({arrays}) AS e ({COLUMNS})"
    )


def measure() -> dict[str, Any]:
    """Append histories both ways, in turn; then publish what waits in the outbox."""
    with (
        tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder,
        postgres_server(Path(folder), is_durable=True) as server,
        nats_server(Path(folder)) as broker,
    ):
        return asyncio.run(_measure(server, broker))


async def _measure(server: PostgresServer, broker: NatsServer) -> dict[str, Any]:
    dsn = await server.create_database("appending")
    async with migrated(dsn) as database:
        stores = postgres_stores(database)
        fence = await a_fence(stores, lease_s=3_600)
        await database.execute_statement(EQUAL_TABLE)
        return {
            "append": await _append(server, database, stores, fence),
            "outbox": await _outbox(broker, stores, fence),
        }


async def _append(
    server: PostgresServer, database: Database, stores: Stores, fence: ShardFence
) -> dict[str, Any]:
    statement = raw_insert()

    async def ledger(history: History) -> None:
        for start in range(0, BATCHES * BATCH_EVENTS, BATCH_EVENTS):
            stream = history.stream(after=start, until=start + BATCH_EVENTS)
            await stores.ledger.append(an_append(fence, stream))

    async def raw(batches: list[list[list[object]]]) -> None:
        for columns in batches:
            await database.execute_statement(statement, *columns)

    ways: dict[str, tuple[Callable[[History], Any], Callable[[Any], Awaitable[None]]]]
    ways = {"raw": (_columns, raw), "ledger": (lambda history: history, ledger)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu_s = dict.fromkeys(ways, 0.0)
    for turn in range(ROUNDS + 1):
        for name, (prepare, append) in ways.items():
            given = prepare(_history(2 * turn + (name == "raw")))
            before, began = _servers(server), time.perf_counter()
            await append(given)
            if turn:  # the first warms up
                seconds[name].append(time.perf_counter() - began)
                cpu_s[name] += _servers(server) - before
    events = BATCHES * BATCH_EVENTS
    return {
        "events": events,
        "batch_events": BATCH_EVENTS,
        **{
            f"{name}_per_s": spread([events / item for item in found], digits=0)
            for name, found in seconds.items()
        },
        **{
            f"{name}_postgres_cpu_us": round(1e6 * cpu / events / ROUNDS, 1)
            for name, cpu in cpu_s.items()
        },
        "ratio": spread(
            [item / other for item, other in zip(seconds["raw"], seconds["ledger"], strict=True)],
            digits=3,
        ),
    }


def _columns(history: History) -> list[list[list[object]]]:
    """Cut a history into batches of columns, ready to be sent."""
    events = history.envelopes[: BATCHES * BATCH_EVENTS]
    batches = [events[at : at + BATCH_EVENTS] for at in range(0, len(events), BATCH_EVENTS)]
    return [
        [list(values) for values in zip(*map(event_rows.build_event_columns, batch), strict=True)]
        for batch in batches
    ]


def _history(number: int) -> History:
    history = History(ExecutionId(str(264905529753600000 + (number << 22))))
    history.start(entry="drain")
    slots = Slots(history, "drain", slots=4)
    turn = 0
    while len(history.envelopes) < BATCHES * BATCH_EVENTS:
        slots.take(turn % 4, turn // 4, rows=20)
        turn += 1
    return history


async def _outbox(broker: NatsServer, stores: Stores, fence: ShardFence) -> dict[str, Any]:
    """Let one publisher send what many transactions left, as it does after an outage."""
    found: list[float] = []
    async with jetstream_bus(broker) as bus:
        await bus.streams.ensure_streams()
        publisher = OutboxPublisher(
            outbox=stores.outbox,
            publisher=bus.publisher,
            hints=bus.hints,
            check=lambda: None,
            owner="bench",
            claim_lease_s=60,
            rows_max=256,
        )
        for turn in range(ROUNDS + 1):
            await stores.ledger.append(_messages(turn, fence))
            began, sent = time.perf_counter(), 0
            while sent < MESSAGES:
                sent += await publisher.publish_batch()
            if turn:
                found.append(MESSAGES / (time.perf_counter() - began))
    return {"messages": MESSAGES, "bytes": MESSAGE_BYTES, "per_s": spread(found, digits=0)}


def _messages(turn: int, fence: ShardFence) -> Append:
    data = b"x" * MESSAGE_BYTES
    messages = [
        NewMessage(
            execution_id=ExecutionId(str(1_000 + number % 100)),
            subject="noetl.events.0.acme.west",
            message_id=f"{turn}-{number}",
            data=data,
        )
        for number in range(MESSAGES)
    ]
    return structs.replace(an_append(fence), messages=messages)


def _servers(server: PostgresServer) -> float:
    return family_cpu_s(psutil.Process(server.pid))
