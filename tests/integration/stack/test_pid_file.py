"""The lock file of PostgreSQL: what a crash left never keeps the server from starting again."""

import asyncio
import os
import secrets
import signal
from pathlib import Path

import psutil
import pytest
from tests.support.servers import postgres_server

from noetl_cli.stack.home_folder import home
from noetl_cli.stack.home_folder.state import ProcessPhase, StackPhase, StackState, StateBoard
from noetl_cli.stack.processes import loopback
from noetl_cli.stack.servers import postgres
from noetl_cli.stack.supervision.process_keeper import ProcessKeeper

PATIENCE_S = 60


@pytest.mark.parametrize(
    "left",
    ["", "not a number\n", "1\n", f"{os.getpid()}\n"],
    ids=["empty", "no number", "another's process", "this process"],
)
async def test_whatever_a_crash_left_in_it_the_server_starts(tmp_path: Path, left: str) -> None:
    with postgres_server(tmp_path, is_durable=True) as server:
        await server.execute_async("create table kept as select 7 as n")
        await asyncio.to_thread(server.kill)
        file = server.cluster.data_folder / postgres.NAME
        assert file.is_file()
        file.write_text(left)
        await asyncio.to_thread(server.start)
        await server.execute_async("insert into kept values (8)")


async def test_the_supervisor_clears_it_before_it_starts_a_killed_server_again(
    tmp_path: Path,
) -> None:
    place = home.make_home(tmp_path / "stack")
    port = loopback.choose_ports(["postgres"], before={})["postgres"]
    cluster = postgres.describe_postgres(
        home=tmp_path, port=port, password=secrets.token_urlsafe(12), is_durable=False
    )
    postgres.prepare_postgres(cluster)
    me = StackState(
        phase=StackPhase.STARTING,
        home=str(place.root),
        supervisor_pid=os.getpid(),
        supervisor_created=0.0,
        started_at="",
    )
    board = StateBoard(place, me)
    keeper = ProcessKeeper(
        postgres.build_postgres_spec(cluster), home=place, board=board, environ=dict(os.environ)
    )

    def state_of() -> tuple[int | None, ProcessPhase]:
        found = board.current_state.processes["postgres"]
        return found.pid, found.phase

    async def until_ready(*, besides: int | None) -> int:
        while True:
            pid, phase = state_of() if "postgres" in board.current_state.processes else (None, None)
            if phase is ProcessPhase.READY and pid is not None and pid != besides:
                return pid
            await asyncio.sleep(0.05)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(keeper.keep_alive())
        try:
            first = await until_ready(besides=None)
            place.hold_file("postgres").touch()
            os.kill(first, signal.SIGKILL)
            while psutil.pid_exists(first):  # noqa: ASYNC110 - it is another process that changes
                await asyncio.sleep(0.05)
            (cluster.data_folder / postgres.NAME).write_text("")
            place.hold_file("postgres").unlink()
            second = await until_ready(besides=first)
            assert psutil.pid_exists(second)
            assert board.current_state.processes["postgres"].restarts == 1
        finally:
            keeper.stop_keeping(discards=True)


async def test_a_server_that_nobody_keeps_is_ended_first(tmp_path: Path) -> None:
    with postgres_server(tmp_path) as server:
        file = server.cluster.data_folder / postgres.NAME
        running = int(file.read_text().split()[0])
        await asyncio.to_thread(postgres.clear_stale_pid_file, server.cluster.data_folder)
        assert not file.exists()
        assert not _is_running(running)


def _is_running(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
