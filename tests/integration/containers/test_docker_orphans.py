"""Whose containers they are: a killed worker's go, and an attempt has one container at a time."""

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.support import docker_containers
from tests.support.docker_containers import fixed_call, list_names, name_of
from tests.support.polling import eventually
from tests.support.working import bench


@pytest.fixture
def visit() -> int:
    """What names the container of a test."""
    return random.getrandbits(48)


@pytest.fixture
def busy(visit: int) -> Iterator[subprocess.Popen[bytes]]:
    """A worker's process, in the middle of a container."""
    process = subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-m", "tests.support.docker_containers", str(visit)]
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_the_next_worker_removes_what_a_killed_one_left(
    busy: subprocess.Popen[bytes], visit: int
) -> None:
    name = name_of(fixed_call("sleep 600", visit))

    async def is_there() -> bool:
        return name in await list_names()

    await eventually(is_there, timeout_s=60)
    assert await docker_containers.sweep_as_another_worker() == 0
    assert await is_there(), "its worker lives"
    busy.send_signal(signal.SIGKILL)
    busy.wait()
    assert await is_there()

    async def is_gone() -> bool:
        return not await is_there()

    async with bench(**docker_containers.SETTINGS):
        await eventually(is_gone)


async def test_an_attempt_that_is_delivered_again_replaces_its_container(
    busy: subprocess.Popen[bytes], visit: int
) -> None:
    """The attempt of a killed worker runs anew, and what it began has ended by then."""
    first = fixed_call("exec sleep 600", visit)

    async def is_there() -> bool:
        return name_of(first) in await list_names()

    await eventually(is_there, timeout_s=60)
    busy.send_signal(signal.SIGKILL)
    busy.wait()
    async with bench(**docker_containers.SETTINGS) as worker:
        outcome = await worker.tools.run(fixed_call("echo again", visit))
    assert outcome.error is None, outcome.error
    assert isinstance(outcome.data, dict)
    assert outcome.data["logs"] == "again\n"
    assert not await is_there()


async def test_a_worker_that_lost_its_lease_is_told_that_its_container_went(visit: int) -> None:
    async with (
        bench(**docker_containers.SETTINGS) as old,
        bench(**docker_containers.SETTINGS) as new,
    ):
        running = asyncio.ensure_future(old.tools.run(fixed_call("exec sleep 600", visit)))

        async def is_there() -> bool:
            return name_of(fixed_call("", visit)) in await list_names()

        await eventually(is_there, timeout_s=60)
        fresh = await new.tools.run(fixed_call("echo '\"new\"'", visit))
        stale = await running
    assert stale.error is not None
    assert stale.error.kind == "container_evicted"
    assert fresh.error is None, fresh.error
    assert isinstance(fresh.data, dict)
    assert fresh.data["result"] == "new"
