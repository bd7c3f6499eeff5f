"""The projector's process killed at every failpoint, its positions wiped, its ledger restored."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from tests.support.builders import History, Slots
from tests.support.bus import jetstream_bus
from tests.support.lineage_rows import list_lineage_rows
from tests.support.polling import eventually
from tests.support.projecting import ProjectorHarness
from tests.support.servers import NatsServer
from tests.support.services import Service, service
from tests.support.storage import migrated, postgres_stores

from noetl_chassis.clock import SystemClock
from noetl_chassis.failpoints import VARIABLE, Failpoint
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_messaging.jetstream.connection import open_connection
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.streams import topology
from noetl_replay.lineage import LineageState, build_lineage_events
from noetl_storage.postgres.database import Database

POINTS = [point for point in Failpoint if point.startswith("projector.")]
PATIENCE_S = 60.0
WIPE = "truncate noetl.projection_position, noetl.projection_checkpoint, noetl.checkpoint"


@pytest.fixture
async def pool(database: str) -> AsyncIterator[Database]:
    async with migrated(database) as opened:
        yield opened


@pytest.fixture
async def harness(pool: Database, nats: NatsServer) -> AsyncIterator[ProjectorHarness]:
    async with jetstream_bus(nats) as bus:
        async with open_connection(nats.url, name="apply") as connection:
            await JetStreamStreams(
                connection, topology.declare_topology(), now=SystemClock().now
            ).ensure_streams()
        yield ProjectorHarness(postgres_stores(pool), bus)


def a_history(number: int) -> History:
    history = History(ExecutionId(str(264905529753600000 + (number << 22))))
    history.start(entry="drain")
    slots = Slots(history, "drain", slots=2)
    for index in range(6):
        slots.take(index % 2, index // 2, rows=5, losses=int(index % 3 == 0))
    slots.close()
    history.finish(last="drain")
    return history


async def is_whole(harness: ProjectorHarness, histories: list[History]) -> bool:
    positions = [await harness.find_position(history) for history in histories]
    return positions == [len(history.envelopes) for history in histories]


async def has_died(process: Service) -> bool:
    return process.process.poll() is not None


async def test_a_projector_killed_anywhere_leaves_what_a_replay_gives(
    pool: Database, harness: ProjectorHarness, nats: NatsServer, database: str, tmp_path: Path
) -> None:
    received: list[str] = []
    wired = {
        "NATS_URL": nats.url_for("projector"),
        "POSTGRES_DSN": database,
        "CATCH_UP_AFTER_S": "0.2",
        "CATCH_UP_INTERVAL_S": "0.2",
        "EPOCH_INTERVAL_S": "0.1",
        "EPOCH_HORIZON_S": "0.1",
        # Each history in several transactions, of which the last ones are another process's.
        "BATCH_MESSAGES_MAX": "4",
        "PACE_S": "0",
        "LINEAGE_INTERVAL_S": "0.1",
    }
    async with receiver(received) as url:
        wired["OPENLINEAGE_URL"] = url
        histories = await kill_everywhere(harness, wired, tmp_path)
        with service("projector", wired, log=tmp_path / "last.log") as process:
            await asyncio.to_thread(process.wait_ready)
            for statement in (None, WIPE):
                if statement is not None:
                    await pool.execute_statement(statement)
                await eventually(lambda: is_whole(harness, histories), timeout_s=PATIENCE_S)
                for history in histories:
                    assert await harness.list_differences(history.envelopes) == []
            await eventually(lambda: are_told(received, histories), timeout_s=PATIENCE_S)
            assert await asyncio.to_thread(process.stop) == 0
    for history in histories:
        rows = await list_lineage_rows(harness.stores.lineage, history.execution_id)
        assert [row.body for row in rows] == told(history)


@asynccontextmanager
async def receiver(received: list[str]) -> AsyncIterator[str]:
    """Take lineage events, each as often as it comes."""

    async def take(request: web.Request) -> web.Response:
        received.append(await request.text())
        return web.Response(status=201)

    app = web.Application()
    app.router.add_post("/api/v1/lineage", take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def told(history: History) -> list[str]:
    """What one process tells that nobody kills."""
    first = history.envelopes[0]
    begun = LineageState(
        execution_id=first.execution_id,
        tenant_id=first.tenant_id,
        organization_id=first.organization_id,
    )
    return [
        codec.encode_text(lineage_event.event)
        for lineage_event in build_lineage_events(begun, history.envelopes, {})
    ]


async def are_told(received: list[str], histories: list[History]) -> bool:
    """Each event has come, and in the order of its history where repetitions are left out."""
    once = list(dict.fromkeys(received))
    expected = [told(history) for history in histories]
    return all([body for body in once if body in set(item)] == item for item in expected)


async def kill_everywhere(
    harness: ProjectorHarness, wired: dict[str, str], tmp_path: Path
) -> list[History]:
    """Let a process die at each point while it has a history of its own to project."""
    histories = []
    for number, point in enumerate(POINTS):
        history = a_history(number)
        histories.append(history)
        await harness.append(history)
        doomed = {**wired, VARIABLE.removeprefix("NOETL_"): f"{point}:kill@1"}
        with service("projector", doomed, log=tmp_path / f"{point}.log") as process:
            await harness.send(history.batches(size=3))
            await eventually(lambda: has_died(process), timeout_s=PATIENCE_S)
            assert process.process.returncode == -signal.SIGKILL, point
    return histories
