import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import psutil
import pytest
from tests.support.servers import wait_until
from tests.support.stack import PATIENCE_S, Stack

FAST = ("--servers-only", "--no-s3")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    command = Stack(tmp_path / "stack")
    yield command
    command.noetl("down", "--purge")
    assert not command.folder.exists()


async def fetch(dsn: str, statement: str) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_the_stack_comes_up_attaches_keeps_its_data_and_goes(stack: Stack) -> None:
    stack.noetl("up", *FAST)
    first = stack.state
    assert first["phase"] == "ready"
    assert "runs already" in stack.noetl("up", *FAST)
    assert stack.state["supervisor_pid"] == first["supervisor_pid"]
    await fetch(first["urls"]["target"], "create table kept as select 7 as n")
    checks = msgspec.json.decode(stack.noetl("doctor", "--json"))
    assert checks["ok"], checks

    stack.noetl("down")
    # The payloads are in files: an S3 server would have none of them.
    answer = stack.noetl("up", "--servers-only", code=2)
    assert "This folder's payloads are in files (--no-s3)" in answer
    assert "Start it with --no-s3" in answer
    assert not [name for name in first["processes"] if psutil.pid_exists(stack.pid(name) or 0)]
    stack.noetl("up", *FAST)
    assert stack.state["ports"] == first["ports"]
    assert await fetch(stack.state["urls"]["target"], "select n from kept") == 7

    left = [stack.pid("postgres"), stack.pid("nats")]
    with (stack.folder / "logs" / "postgres.log").open() as log:
        stack.noetl("down", "--purge")
        answer = log.read()
    # Nothing was written to the disk for the sake of data that is gone.
    assert answer.count("fast shutdown") == answer.count("immediate shutdown") == 1
    assert not [pid for pid in left if pid is not None and psutil.pid_exists(pid)]


async def test_the_next_up_replaces_what_a_killed_supervisor_left(stack: Stack) -> None:
    stack.noetl("up", *FAST)
    left = [stack.pid("postgres"), stack.pid("nats")]
    os.kill(stack.state["supervisor_pid"], signal.SIGKILL)
    assert "was killed" in stack.noetl("doctor")
    stack.noetl("up", *FAST)
    assert not [pid for pid in left if pid is not None and psutil.pid_exists(pid)]
    assert await fetch(stack.state["urls"]["target"], "select 1") == 1


def test_down_ends_what_a_killed_supervisor_left(stack: Stack) -> None:
    stack.noetl("up", *FAST)
    left = [stack.pid("postgres"), stack.pid("nats")]
    os.kill(stack.state["supervisor_pid"], signal.SIGKILL)
    stack.noetl("down")
    assert not [pid for pid in left if pid is not None and psutil.pid_exists(pid)]


def test_a_killed_broker_comes_back_with_its_streams_even_when_its_store_is_gone(
    stack: Stack,
) -> None:
    stack.noetl("up", *FAST)
    with stack.without("nats"):
        assert "noetl logs nats" in stack.noetl("doctor", code=1)
        shutil.rmtree(stack.folder / "nats" / "jetstream")
    assert stack.noetl("logs", "apply", "-n", "1000").count("applied NOETL_EVENTS\n") == 2


def test_passwords_are_neither_printed_nor_logged_nor_in_process_lists(stack: Stack) -> None:
    shown = (
        stack.noetl("up", *FAST, "--json")
        + stack.noetl("doctor")
        + stack.noetl("logs", "-n", "1000")
    )
    secrets = msgspec.json.decode((stack.folder / "secrets.json").read_bytes())
    hidden = [
        secrets["postgres_superuser"],
        secrets["secret_key"],
        secrets["owner_token"],
        *secrets["postgres_by_role"].values(),
        *secrets["nats_by_user"].values(),
    ]
    argv = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [word for word in hidden if word in shown or any(word in line for line in argv)]


def test_purging_refuses_a_folder_that_is_not_a_stacks(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "thesis.txt").touch()
    assert "nothing was deleted" in Stack(folder).noetl("down", "--purge", code=2)
    assert (folder / "thesis.txt").exists()


def test_an_unreachable_database_is_named_without_its_password(stack: Stack) -> None:
    answer = stack.noetl("up", *FAST, "--postgres", "postgresql://me:pw-x@127.0.0.1:9/db", code=1)
    assert "127.0.0.1:9" in answer
    assert "pw-x" not in answer


def test_the_supervisor_in_the_foreground_ends_on_interrupt(stack: Stack) -> None:
    argv = [sys.executable, "-m", "noetl_cli", "up", "--dir", str(stack.folder), *FAST]
    with subprocess.Popen(  # noqa: S603 - our own command line
        [*argv, "--foreground"], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as up:
        wait_until(
            lambda: (stack.folder / "state.json").is_file() and stack.state["phase"] == "ready",
            timeout_s=PATIENCE_S,
            what="the stack is ready",
        )
        up.send_signal(signal.SIGINT)
        assert up.wait(PATIENCE_S) == 0
    assert stack.state["phase"] == "stopped"


def test_two_at_once_end_with_one_stack(stack: Stack) -> None:
    argv = [sys.executable, "-m", "noetl_cli", "up", "--dir", str(stack.folder), *FAST]
    both = [
        subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: S603 - our own command line
        for _ in range(2)
    ]
    assert [item.wait(PATIENCE_S) for item in both] == [0, 0]
    assert stack.state["phase"] == "ready"
