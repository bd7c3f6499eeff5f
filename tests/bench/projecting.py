"""What one projector can take: events/s of its shards, CPU an event, and its lag at a steady rate."""

import asyncio
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import uvloop
from tests.bench.cpu import family_cpu_s
from tests.bench.spread import share, spread
from tests.support.builders import History, Slots
from tests.support.bus import memory_bus
from tests.support.projecting import ProjectorHarness
from tests.support.servers import PostgresServer, postgres_server
from tests.support.storage import migrated, postgres_stores

from noetl_chassis.lifecycle import tune_garbage_collector
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import EventBatch
from noetl_projector.service import Projector

EXECUTIONS = 100
ROUNDS = 5
FRAMES = 80
# As a planner's transaction leaves one execution's events.
BATCH_EVENTS = 10
STEADY_EVENTS_PER_S = 5_000
STEADY_S = 10.0


def measure(*, executions: int = EXECUTIONS, steady_s: float = STEADY_S) -> dict[str, Any]:
    """Project many histories as fast as it goes, and others at a steady rate."""
    with (
        tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder,
        postgres_server(Path(folder), is_durable=True) as server,
    ):
        # What a service does as it starts.
        tune_garbage_collector()
        return uvloop.run(_measure(server, executions, steady_s))


async def _measure(server: PostgresServer, executions: int, steady_s: float) -> dict[str, Any]:
    dsn = await server.create_database("projecting")
    async with migrated(dsn) as database, memory_bus() as bus:
        await bus.streams.ensure_streams()
        harness = ProjectorHarness(postgres_stores(database), bus)
        projector = harness.projector(
            fetch_wait_s=0.01, snapshot_every_versions=1000, snapshot_at_end_versions=200
        )
        rounds = [
            await _as_fast_as_it_goes(server, harness, projector, number * executions, executions)
            for number in range(ROUNDS)
        ]
        names = ("events_per_s", "projector_cpu_us_per_event", "postgres_cpu_us_per_event")
        fast = {name: spread([item[name] for item in rounds]) for name in names}
        steady = await _steadily(harness, projector, ROUNDS * executions, executions, steady_s)
        return {"events": int(rounds[0]["events"]), "rounds": ROUNDS, **fast, **steady}


async def _as_fast_as_it_goes(
    server: PostgresServer,
    harness: ProjectorHarness,
    projector: Projector,
    first: int,
    executions: int,
) -> dict[str, float]:
    batches = _interleaved(first, executions)
    await harness.send(batches)
    before = projector.summarize_state()["events"]
    events = sum(len(batch.events) for batch in batches)
    began, own, servers = time.perf_counter(), time.process_time(), _cpu_s(server)
    while await projector.project_batches():
        pass
    seconds = time.perf_counter() - began
    assert projector.summarize_state()["events"] == before + events
    return {
        "events": events,
        "events_per_s": round(events / seconds),
        "projector_cpu_us_per_event": _each_us(time.process_time() - own, events),
        "postgres_cpu_us_per_event": _each_us(_cpu_s(server) - servers, events),
    }


async def _steadily(
    harness: ProjectorHarness, projector: Projector, first: int, executions: int, steady_s: float
) -> dict[str, Any]:
    """Send at a rate; the lag of a batch is from when it was due until it was projected."""
    batches = _interleaved(first, executions)
    wanted = int(steady_s * STEADY_EVENTS_PER_S / BATCH_EVENTS)
    batches = batches[:wanted]
    due: list[float] = []
    lags_ms: list[float] = []
    is_sent = asyncio.Event()
    began = time.perf_counter()

    async def send() -> None:
        for number, batch in enumerate(batches):
            at = began + number * BATCH_EVENTS / STEADY_EVENTS_PER_S
            await asyncio.sleep(at - time.perf_counter())
            await harness.send([batch])
            due.append(at)
        is_sent.set()

    async def project() -> None:
        while len(lags_ms) < len(due) or not is_sent.is_set():
            done = await projector.project_batches()
            now = time.perf_counter()
            lags_ms.extend((now - at) * 1000 for at in due[len(lags_ms) : len(lags_ms) + done])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(send())
        tasks.create_task(project())
    return {
        "steady_events_per_s": STEADY_EVENTS_PER_S,
        "lag_p50_ms": round(share(lags_ms, 0.5), 1),
        "lag_p95_ms": round(share(lags_ms, 0.95), 1),
    }


def _interleaved(first: int, executions: int) -> list[EventBatch]:
    """Batches of many executions, as they would come if all of them ran at once."""
    every = [_history(first + number).batches(size=BATCH_EVENTS) for number in range(executions)]
    longest = max(map(len, every))
    return [batches[turn] for turn in range(longest) for batches in every if turn < len(batches)]


def _history(number: int) -> History:
    history = History(ExecutionId(str(264905529753600000 + (number << 22))))
    history.start(entry="drain")
    slots = Slots(history, "drain", slots=4)
    for turn in range(FRAMES):
        slots.take(turn % 4, turn // 4, rows=20)
    slots.close()
    history.finish(last="drain")
    return history


def _cpu_s(server: PostgresServer) -> float:
    return family_cpu_s(psutil.Process(server.pid))


def _each_us(cpu_s: float, count: int) -> float:
    return round(cpu_s / count * 1_000_000, 1)
