"""`noetl doctor` says which walls stand around tasks on this machine."""

import sys
from pathlib import Path

import pytest

from noetl_cli.stack import task_walls
from noetl_cli.stack.doctor import check_stack
from noetl_cli.stack.home_folder.home import StackHome
from noetl_cli.stack.processes.health_check import Verdict


@pytest.mark.skipif(sys.platform != "linux", reason="the walls are those of Linux")
def test_every_wall_is_told(tmp_path: Path) -> None:
    checks = check_stack(StackHome(root=tmp_path), environ={})
    found = {check.name: check for check in checks if check.name.startswith("task wall")}
    assert found.keys() == {f"task wall {wall}" for wall in task_walls.PURPOSES}
    for check in found.values():
        is_missing = check.verdict is Verdict.WARN
        assert check.found.startswith("missing: ") is is_missing
        assert bool(check.way_out) is is_missing


def test_a_missing_wall_has_its_reason_and_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_walls, "_probe_walls", lambda: {"sockets": "no filter here"})
    by_name = {check.name: check for check in task_walls.check_task_walls()}
    check = by_name["task wall sockets"]
    assert (check.verdict, check.found) == (Verdict.WARN, "missing: no filter here")
    assert "container" in check.way_out
    assert by_name["task wall reading"].verdict is Verdict.OK


def test_a_machine_that_cannot_confine_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    (check,) = task_walls.check_task_walls()
    assert check.verdict is Verdict.WARN
    assert "/no/such/python" in check.found
