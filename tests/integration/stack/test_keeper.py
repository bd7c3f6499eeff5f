import asyncio
import errno
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs

from noetl_cli.errors import StackError
from noetl_cli.stack.home_folder import home, state
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.home_folder.state import ProcessPhase, StackPhase, StackState, StateBoard
from noetl_cli.stack.processes import probes
from noetl_cli.stack.processes.process_spec import (
    CommandProbe,
    NatsProbe,
    ProcessSpec,
    ProcessTier,
    StoreWatch,
)
from noetl_cli.stack.supervision.process_keeper import ProcessKeeper

PATIENCE_S = 60
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True)\n"
WAITS = "while True: time.sleep(1)"


@pytest.fixture
def place(tmp_path: Path) -> StackHome:
    return home.make_home(tmp_path / "stack")


@pytest.fixture
def board(place: StackHome) -> StateBoard:
    me = StackState(
        phase=StackPhase.STARTING,
        home=str(place.root),
        supervisor_pid=os.getpid(),
        supervisor_created=0.0,
        started_at="",
    )
    return StateBoard(place, me)


def stand_in(place: StackHome, *argv: str, probe: CommandProbe | None = None) -> ProcessSpec:
    return ProcessSpec(
        name="stand-in",
        tier=ProcessTier.SERVICE,
        argv=argv or ("/bin/sh", "-c", "exec sleep 1000"),
        directory=place.root,
        probe=probe,
        stop_timeout_s=0.3,
        ready_timeout_s=30.0,
    )


@asynccontextmanager
async def kept(
    spec: ProcessSpec, place: StackHome, board: StateBoard
) -> AsyncIterator[ProcessKeeper]:
    keeper = ProcessKeeper(spec, home=place, board=board, environ={"PATH": os.defpath})
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(keeper.keep_alive())
        try:
            yield keeper
        finally:
            keeper.stop_keeping()


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():  # noqa: ASYNC110 - it is another process that changes
            await asyncio.sleep(0.01)


def pid(board: StateBoard) -> int | None:
    process = board.current_state.processes.get("stand-in")
    return process.pid if process else None


async def test_a_killed_process_is_started_again(place: StackHome, board: StateBoard) -> None:
    async with kept(stand_in(place), place, board) as keeper:
        await keeper.wait_ready()
        first = pid(board)
        assert first is not None
        os.kill(first, signal.SIGKILL)
        await until(lambda: pid(board) not in {None, first})
        assert board.current_state.processes["stand-in"].restarts == 1


async def test_a_held_process_stays_dead_until_it_is_let_go(
    place: StackHome, board: StateBoard
) -> None:
    async with kept(stand_in(place), place, board) as keeper:
        await keeper.wait_ready()
        first = pid(board)
        assert first is not None
        place.hold_file("stand-in").touch()
        os.kill(first, signal.SIGKILL)
        await until(lambda: pid(board) is None)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await until(lambda: pid(board) is not None)
        place.hold_file("stand-in").unlink()
        await until(lambda: pid(board) not in {None, first})


async def test_letting_go_ends_the_process_and_records_it(
    place: StackHome, board: StateBoard
) -> None:
    async with kept(stand_in(place), place, board) as keeper:
        await keeper.wait_ready()
        first = pid(board)
        keeper.stop_keeping()
        await keeper.wait_gone()
        assert board.current_state.processes["stand-in"].phase is ProcessPhase.STOPPED
        assert first is not None
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)


@pytest.mark.parametrize(("discards", "said"), [(False, "kept"), (True, "thrown away")])
async def test_a_process_whose_data_is_deleted_next_is_told_so(
    place: StackHome, board: StateBoard, *, discards: bool, said: str
) -> None:
    script = "trap 'echo kept; exit' TERM; trap 'echo thrown away; exit' USR1; echo up; "
    probe = CommandProbe(argv=("/bin/grep", "-q", "up", str(place.log_file("stand-in"))))
    spec = stand_in(place, "/bin/sh", "-c", script + "while :; do sleep 0.05; done", probe=probe)
    told = structs.replace(spec, discard_signal=signal.SIGUSR1, stop_timeout_s=PATIENCE_S)
    async with kept(told, place, board) as keeper:
        await keeper.wait_ready()
        keeper.stop_keeping(discards=discards)
        await keeper.wait_gone()
    assert place.log_file("stand-in").read_text().splitlines() == ["up", said]


async def test_a_process_that_ignores_the_request_to_end_is_killed(
    place: StackHome, board: StateBoard
) -> None:
    probe = CommandProbe(argv=("/bin/grep", "-q", "up", str(place.log_file("stand-in"))))
    spec = stand_in(place, sys.executable, "-c", STUBBORN + WAITS, probe=probe)
    async with kept(spec, place, board) as keeper:
        await keeper.wait_ready()
        keeper.stop_keeping()
        await keeper.wait_gone()


async def test_a_process_that_cannot_start_is_reported_with_the_end_of_its_log(
    place: StackHome, board: StateBoard
) -> None:
    spec = stand_in(
        place,
        *("/bin/sh", "-c", "echo settings are wrong; exit 3"),
        probe=CommandProbe(argv=("/bin/false",)),
    )
    async with kept(spec, place, board) as keeper:
        with pytest.raises(StackError, match="settings are wrong"):
            await keeper.wait_ready()


async def test_a_program_that_is_not_there_is_named(place: StackHome, board: StateBoard) -> None:
    async with kept(stand_in(place, "/nowhere/planner"), place, board) as keeper:
        with pytest.raises(StackError, match="/nowhere/planner"):
            await keeper.wait_ready()


async def test_a_process_that_never_answers_is_reported(
    place: StackHome, board: StateBoard
) -> None:
    spec = stand_in(place, probe=CommandProbe(argv=("/bin/false",)))
    async with kept(structs.replace(spec, ready_timeout_s=1.0), place, board) as keeper:
        with pytest.raises(StackError, match="did not answer for 1 s"):
            await keeper.wait_ready()


async def test_a_server_that_has_given_up_its_store_is_started_again(
    place: StackHome, board: StateBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, refuses, asked = [True], [False], [0]

    def is_refused(_probe: NatsProbe) -> bool:
        asked[0] += 1
        return refuses[0]

    monkeypatch.setattr(probes, "has_room", lambda _folder: room[0])
    monkeypatch.setattr(probes, "is_unwell", is_refused)
    watch = StoreWatch(
        probe=NatsProbe(url="nats://127.0.0.1:1"), folder=place.root, interval_s=0.01
    )
    async with kept(structs.replace(stand_in(place), watch=watch), place, board) as keeper:
        await keeper.wait_ready()
        first = pid(board)
        # While its disk is full it is left alone.
        room[0] = False
        refuses[0] = True
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await until(lambda: pid(board) != first)
        assert asked[0] == 0
        room[0] = True
        await until(lambda: pid(board) not in {None, first})
        refuses[0] = False
        assert board.current_state.processes["stand-in"].restarts == 1


async def test_a_full_disk_of_the_folder_ends_nobody(
    place: StackHome, board: StateBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with kept(stand_in(place), place, board) as keeper:
        await keeper.wait_ready()
        first = pid(board)
        assert first is not None
        with monkeypatch.context() as filled:
            filled.setattr(os, "fsync", full)
            os.kill(first, signal.SIGKILL)
            await until(lambda: pid(board) not in {None, first})
            assert state.find_state(place).processes["stand-in"].pid == first
            assert list(place.root.glob(".state*")) == []
        board.write_missed()
        assert state.find_state(place) == board.current_state


async def test_a_service_that_refuses_its_settings_is_started_once(
    place: StackHome, board: StateBoard
) -> None:
    spec = stand_in(place, "/bin/sh", "-c", "echo 'error: NOETL_X: not a number' >&2; exit 2")
    async with kept(structs.replace(spec, probe=CommandProbe(argv=("false",))), place, board) as it:
        with pytest.raises(StackError) as refusal:
            await it.wait_ready()
    assert "refused its settings before it was ready" in refusal.value.message
    assert "error: NOETL_X: not a number" in refusal.value.message
    assert board.current_state.processes["stand-in"].restarts == 0
