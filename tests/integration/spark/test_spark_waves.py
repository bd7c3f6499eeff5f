"""Frames in waves on a real session: each ends by itself, and only what had not ended is lost."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec import Struct, structs
from tests.support.polling import eventually
from tests.support.spark import kill_drivers
from tests.support.wave_bench import (
    SUM,
    WaveBench,
    executor_environ,
    frames_of,
    open_wave_bench,
    run_all,
)

from noetl_contracts.commands.command_work import Command
from noetl_contracts.requests.facts import CommandLost, FrameClosed
from noetl_worker.settings import read_java_environ, set_variables
from noetl_worker.spark.session import SharedSparkSession, open_spark_session
from noetl_worker.spark.session_options import SessionOptions

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

# Its first rows wait for a file; the others do not.
WAIT = """
- step: s
  loop:
    in: "{{ workload.rows }}"
    iterator: row
    spec: {mode: chunked, chunk_size: 5, frame: {process: frame}}
  tool:
    kind: shell
    cwd: noetl://files/gates
    env: {N: "{{ iter.row[0].n }}"}
    cmds: ["echo $N >> started", "[ $N -gt 0 ] || while [ ! -e open ]; do sleep 0.1; done"]
"""


class WaveSession(Struct, frozen=True, kw_only=True):
    """One session for the whole module, and waves over it."""

    spark_session: SharedSparkSession
    bench: WaveBench
    gates: Path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WaveSession]:
    folder = tmp_path_factory.mktemp("waves")
    store, work = folder / "store", folder / "work"
    store.mkdir()
    environ = dict(os.environ)
    set_variables(
        {
            **executor_environ(store),
            "NOETL_WORKER_SHELL_ALLOWED": "true",
            "NOETL_WORKER_WORK_DIRECTORY": str(work),
        }
    )
    options = SessionOptions(
        master="local[2]",
        folder=folder / "spark",
        adopt=set_variables,
        environ=read_java_environ(),
        memory_bytes=512 * 1024**2,
    )
    async with (
        open_spark_session(options) as spark_session,
        open_wave_bench(spark_session, store, poll_s=0.1) as bench,
    ):
        yield WaveSession(
            spark_session=spark_session,
            bench=bench,
            gates=work / "tenant/acme/org/west/files/gates",
        )
    os.environ.clear()
    os.environ.update(environ)


async def until(is_so: Callable[[], bool]) -> None:
    async def probe() -> bool:
        return is_so()

    await eventually(probe, timeout_s=60)


async def frames(session: WaveSession, step: str, *, count: int, size: int = 5) -> list[Command]:
    rows = [{"n": n} for n in range(count)]
    reference = await session.bench.collection(rows)
    return frames_of(step, reference, total=count, size=size, frame={"process": "frame"})


def results(facts: list[FrameClosed]) -> list[object]:
    return [fact.result.context["data"]["results"] for fact in facts if fact.result is not None]


async def test_every_frame_of_a_wave_gives_what_it_would_give_anywhere(
    session: WaveSession,
) -> None:
    commands = await frames(session, SUM, count=100)
    facts = await run_all(session.bench, commands)
    closed = [fact for fact in facts if isinstance(fact, FrameClosed)]
    assert results(closed) == [[sum(range(at, at + 5))] for at in range(0, 100, 5)]
    assert [fact.command_id for fact in closed] == [command.command_id for command in commands]


async def test_functions_of_other_jobs_are_in_no_process_of_a_wave(session: WaveSession) -> None:
    await run_all(session.bench, await frames(session, SUM, count=20))

    def look_around(_: int) -> tuple[bool, list[str]]:
        names = sorted(name for name in os.environ if name.startswith("NOETL_"))
        return "noetl_worker.executor_entry" in sys.modules, names

    for _ in range(2):
        found = await session.spark_session.run_job(
            lambda spark: spark.sparkContext.parallelize(range(4), 4).map(look_around).collect(),
            name="look",
        )
        assert found == [(False, [])] * 4


async def test_a_frame_that_fails_fails_alone(session: WaveSession) -> None:
    reference = await session.bench.collection([{"n": -1 if n == 7 else n} for n in range(20)])
    commands = frames_of(SUM, reference, total=20, size=5, frame={"process": "frame"})
    facts = await run_all(session.bench, commands)
    errors = [fact.error for fact in facts if isinstance(fact, FrameClosed)]
    assert [error and error.kind for error in errors] == [None, "transform", None, None]
    assert errors[1] is not None
    assert errors[1].message == "a row below zero"


async def test_what_ended_is_told_while_the_wave_goes_on(session: WaveSession) -> None:
    commands = await frames(session, WAIT, count=30)
    running = [
        asyncio.ensure_future(session.bench.waves.run_command_frame(command))
        for command in commands
    ]
    await until(lambda: all(item.done() for item in running[1:]))
    assert not running[0].done()
    (session.gates / "open").touch()
    fact = await running[0]
    assert isinstance(fact, FrameClosed)
    assert fact.error is None
    (session.gates / "open").unlink()


async def test_a_cancelled_wave_stops_its_job(session: WaveSession) -> None:
    (session.gates / "started").unlink()
    (command, *_) = await frames(session, WAIT, count=5)
    running = asyncio.ensure_future(session.bench.waves.run_command_frame(command))
    await until((session.gates / "started").exists)
    running.cancel()
    assert isinstance((await asyncio.gather(running, return_exceptions=True))[0], BaseException)

    def jobs(session: object) -> int:
        return len(session.sparkContext.statusTracker().getActiveJobsIds())  # type: ignore[attr-defined]  # a session

    async def is_idle() -> bool:
        return await session.spark_session.run_job(jobs, name="looking") == 0

    await eventually(is_idle, timeout_s=60)


async def test_a_driver_that_dies_gives_back_exactly_what_had_not_ended(
    session: WaveSession,
) -> None:
    commands = await frames(session, WAIT, count=30)
    running = [
        asyncio.ensure_future(session.bench.waves.run_command_frame(command))
        for command in commands
    ]
    await until(lambda: sum(item.done() for item in running) >= 2)
    kill_drivers()
    facts = await asyncio.gather(*running)
    lost = [fact for fact in facts if isinstance(fact, CommandLost)]
    assert facts[0] in lost
    assert len(lost) + sum(isinstance(fact, FrameClosed) for fact in facts) == 6
    (session.gates / "open").touch()
    lost_ids = {fact.command_id for fact in lost}
    again = [_next(command) for command in commands if command.command_id in lost_ids]
    assert all(isinstance(fact, FrameClosed) for fact in await run_all(session.bench, again))


def _next(command: Command) -> Command:
    """The command as the planner sends it out again."""
    work = structs.replace(command.work, attempt=2)  # type: ignore[type-var]  # always a frame's
    return structs.replace(command, attempt=2, work=work)
