"""The projector between PostgreSQL and JetStream, in this process and as its own."""

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.builders import (
    ORGANIZATION,
    TENANT,
    History,
    Slots,
    a_cursor_loop,
    a_single_step,
)
from tests.support.bus import jetstream_bus
from tests.support.polling import eventually
from tests.support.projecting import ProjectorHarness, run_dry
from tests.support.servers import NatsServer, nats_server
from tests.support.storage import migrated, postgres_stores

from noetl_chassis.clock import SystemClock
from noetl_cli import __main__ as command_line
from noetl_cli.stack.processes import loopback
from noetl_contracts import codec
from noetl_messaging.jetstream.connection import open_connection
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.streams import topology

STOP_S = 60.0


@pytest.fixture
async def harness(database: str, nats: NatsServer) -> AsyncIterator[ProjectorHarness]:
    async with jetstream_bus(nats) as bus, migrated(database) as pool:
        await bus.streams.ensure_streams()
        yield ProjectorHarness(postgres_stores(pool), bus)


def a_long_history(frames: int = 60) -> History:
    history = History()
    history.start(entry="drain")
    slots = Slots(history, "drain", slots=3)
    for index in range(frames):
        slots.take(
            index % 3, index // 3, rows=5, losses=int(index % 7 == 0), bad=int(index % 11 == 0)
        )
    slots.close()
    history.finish(last="drain")
    return history


async def test_what_postgres_stores_equals_a_replay(harness: ProjectorHarness) -> None:
    history = a_cursor_loop()
    await harness.append(history)
    await harness.send(history.batches(size=4))
    await run_dry(harness.projector())
    assert await harness.list_differences(history.envelopes) == []


async def test_two_projectors_at_once_project_every_version_once(harness: ProjectorHarness) -> None:
    history = a_long_history()
    await harness.append(history)
    batches = history.batches(size=3)
    await harness.send([*batches[::2], *batches[1::2], *batches[::3]])
    await asyncio.gather(*(run_dry(harness.projector(batch_messages_max=7)) for _ in range(2)))

    async def is_done() -> bool:
        await asyncio.gather(*(run_dry(harness.projector()) for _ in range(2)))
        # A message that lost the race too often is given up; the ledger has what it told.
        await harness.projector().catch_up()
        return await harness.find_position(history) == len(history.envelopes)

    await eventually(is_done)
    assert await harness.list_differences(history.envelopes) == []


async def test_a_wiped_jetstream_loses_nothing(database: str, tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        async with jetstream_bus(server) as bus, migrated(database) as pool:
            await bus.streams.ensure_streams()
            await survive_a_wipe(ProjectorHarness(postgres_stores(pool), bus), server)


async def survive_a_wipe(harness: ProjectorHarness, server: NatsServer) -> None:
    history = a_long_history(frames=20)
    await harness.append(history)
    await harness.send(history.batches(size=5)[:4])
    projector = harness.projector()
    await run_dry(projector)
    # In this thread: a server ends with the thread that started it.
    server.wipe()

    async def catches_up() -> bool:
        await projector.catch_up()
        return await harness.find_position(history) == len(history.envelopes)

    await eventually(catches_up)
    assert await harness.list_differences(history.envelopes) == []


async def test_the_process_projects_and_ends_on_sigterm(
    database: str, nats: NatsServer, harness: ProjectorHarness
) -> None:
    chosen = loopback.choose_ports(["health"], before={})
    async with open_connection(nats.url, name="apply") as connection:
        await JetStreamStreams(
            connection, topology.declare_topology(), now=SystemClock().now
        ).ensure_streams()
    process = start(
        {
            "NATS_URL": nats.url_for("projector"),
            "POSTGRES_DSN": database,
            "HEALTH_PORT": str(chosen["health"]),
            "CATCH_UP_AFTER_S": "0.1",
            "CATCH_UP_INTERVAL_S": "0.1",
        }
    )
    try:
        history = a_single_step()
        await harness.append(history)

        async def is_projected() -> bool:
            assert process.poll() is None, "the projector ended by itself"
            return await harness.find_position(history) == len(history.envelopes)

        await eventually(is_projected)
        assert await harness.list_differences(history.envelopes) == []

        async def is_counted() -> bool:
            url = f"http://127.0.0.1:{chosen['health']}/summary"
            summary = (await asyncio.to_thread(read, url))["projector"]
            assert summary["shards"] == list(range(16))
            return bool(summary["events"] == len(history.envelopes))

        await eventually(is_counted)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, STOP_S) == 0
    finally:
        process.kill()
        process.wait()


async def test_a_restored_ledger_stops_the_process_until_it_is_rebuilt(
    database: str, nats: NatsServer, harness: ProjectorHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = a_single_step()
    await harness.append(history, until=3)
    ahead = {history.execution_id: (0, 9)}
    await harness.stores.projections.apply_rows(shard=0, rows={}, positions=ahead)
    wired = {"NATS_URL": nats.url_for("projector"), "POSTGRES_DSN": database}
    process = start(wired, stderr=subprocess.PIPE)
    _, output = await asyncio.to_thread(process.communicate, timeout=STOP_S)
    assert process.returncode == 1
    assert "error: the ledger went backwards" in output.decode()
    assert "Traceback" not in output.decode()
    # As the projector, which may record its own rebuilds.
    as_projector = f"{database}?role=noetl_projector"
    rebuild = ["noetl", "projection", "rebuild", "--all", "--postgres", as_projector]
    place = ["--tenant", TENANT, "--organization", ORGANIZATION]
    monkeypatch.setattr(sys, "argv", [*rebuild, *place])
    with pytest.raises(SystemExit) as ended:
        await asyncio.to_thread(command_line.main)
    assert ended.value.code == 0
    assert await harness.find_position(history) == 3
    assert await harness.list_differences(history.envelopes[:3]) == []
    await harness.projector().guard.check_positions()


def read(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - our own process
        return codec.decode_json(answer.read())


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "NOETL_PROJECTOR_NATS_URL must be set"),
        (
            {"NATS_URL": "nats://x", "POSTGRES_DSN": "postgresql://x", "SHARD_INDEX": "3"},
            "numbered from 0 to 0",
        ),
    ],
)
def test_wrong_settings_end_in_one_line(fields: dict[str, str], sentence: str) -> None:
    process = start(fields, stderr=subprocess.PIPE)
    _, output = process.communicate(timeout=STOP_S)
    assert process.returncode == 2
    assert sentence in output.decode()
    assert "Traceback" not in output.decode()


def start(fields: dict[str, str], *, stderr: int | None = None) -> subprocess.Popen[bytes]:
    environ = {f"NOETL_PROJECTOR_{name}": value for name, value in fields.items()}
    return subprocess.Popen(
        [sys.executable, "-m", "noetl_projector"],
        env={"PATH": os.environ.get("PATH", ""), **environ},
        stderr=stderr,
    )
