"""A backup of the composed stack, restored where its database is lost (docs/how-to/back-up.md)."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.containers.test_compose import PLAYBOOK, SUM, read_total, run_squares
from tests.support import containers
from tests.support.containers import ComposedStack, run_docker

from noetl_cli.stack.processes import loopback

FACTS = ("planner", "worker", "projector", "outbox", "reaper")
PSQL = "psql --quiet --no-psqlrc -v ON_ERROR_STOP=1 --host 127.0.0.1"
LOGIN = "set -a; . /run/noetl/environment; set +a; exec"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposedStack]:
    folder = tmp_path_factory.mktemp("restored")
    (folder / "squares.yaml").write_text(PLAYBOOK.replace("pause_s: 0.8", "pause_s: 0"))
    port = loopback.choose_ports(["api"], before={})["api"]
    composed = ComposedStack(folder, name=f"noetl-restore-{os.getpid()}", port=port)
    try:
        composed.start()
        yield composed
    finally:
        composed.compose("down", "--volumes", "--timeout", "20")


def in_postgres(stack: ComposedStack, command: str) -> str:
    """Run a program in the database's container, as its superuser."""
    return stack.compose("exec", "-T", "postgres", "sh", "-c", f"{LOGIN} {command}")


def verify_replay(stack: ComposedStack, execution: str, folder: Path) -> None:
    """Compare the replay of a history with the rows that the stack shows."""
    told = stack.noetl("replay", "verify", execution, "--output", str(folder))
    assert "unchanged, and agrees with every other" in told, told


def test_a_dump_gives_a_lost_ledger_back_with_its_history_and_its_walls(
    stack: ComposedStack, tmp_path: Path
) -> None:
    execution = run_squares(stack)
    before = stack.noetl("events", execution, "--json")
    verify_replay(stack, execution, tmp_path / "before")
    dump = "pg_dump --username postgres --host 127.0.0.1 noetl"
    kept = tmp_path / "noetl.sql"
    kept.write_text(in_postgres(stack, dump))
    # The server's folder is gone, and with it what came after the dump.
    late = run_squares(stack)
    stack.compose("rm", "--stop", "--force", *FACTS, "roles", "migrate", "postgres")
    run_docker("volume", "rm", f"{stack.name}_postgres")
    stack.start("postgres")
    stack.compose("run", "--rm", "-T", "roles")
    (container,) = stack.containers("postgres")
    place = "/var/lib/postgresql/noetl.sql"
    run_docker("cp", str(kept), f"{container}:{place}")
    in_postgres(stack, f"{PSQL} --username postgres --dbname noetl --file {place}")
    stack.start()
    assert read_total(stack, execution) == SUM
    assert stack.noetl("events", execution, "--json") == before
    verify_replay(stack, execution, tmp_path / "after")
    assert late not in stack.noetl("ls", "--all")
    assert read_total(stack, run_squares(stack)) == SUM
    if not containers.find_obstacle(images=("noetl-cli",)):
        rebuilt = stack.compose("run", "--rm", "-T", "admin", "projection", "rebuild", "--all")
        assert re.search(r"[1-9]\d* of tenant .* rebuilt, 0 of them had other rows", rebuilt)
    doctor = msgspec.json.decode(stack.noetl("doctor", "--json"))
    assert doctor["ok"] is True, doctor
