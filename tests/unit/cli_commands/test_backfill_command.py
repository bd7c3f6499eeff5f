"""`noetl backfill`: each range runs once, however often the command is given."""

import time
from typing import Any, Self

import pytest
from typer.testing import CliRunner, Result

from noetl_cli.__main__ import app
from noetl_cli.errors import ExitCode
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerRefusal

MODEL = {"workflow": [{"step": "load", "incremental": {"from": "state.orders", "cursor": "at"}}]}


class FakePlanner:
    """Answers by idempotency key, as the planner does; runs end when they are looked at."""

    def __init__(self) -> None:
        self.id_by_key: dict[str, str] = {}
        self.body_by_id: dict[str, dict[str, Any]] = {}
        self.status_by_id: dict[str, str] = {}
        self.failing: set[Any] = set()
        self.looks_left = 10_000
        self.most_running = 0
        self.state: dict[str, Any] | None = None
        self.puts: list[dict[str, Any]] = []

    def post(self, path: str, body: dict[str, Any], *, headers: dict[str, str]) -> dict[str, Any]:
        assert path == "/api/execute"
        key = headers["Idempotency-Key"]
        known = self.id_by_key.get(key)
        if known is None:
            known = self.id_by_key[key] = str(len(self.id_by_key) + 1)
            self.body_by_id[known] = body
            self.status_by_id[known] = "RUNNING"
            running = sum(status == "RUNNING" for status in self.status_by_id.values())
            self.most_running = max(self.most_running, running)
            return {"execution_id": known, "deduplicated": False}
        return {"execution_id": known, "deduplicated": True}

    def get(self, path: str, /, **params: Any) -> dict[str, Any]:
        if path.startswith("/api/catalog/"):
            return {"model": MODEL}
        if path == "/api/state/value":
            if self.state is None:
                raise PlannerRefusal(404, {"detail": "no value yet"})
            return self.state
        self.looks_left -= 1
        if self.looks_left < 0:
            raise KeyboardInterrupt
        execution_id = path.split("/")[3]
        if self.status_by_id[execution_id] == "RUNNING":
            since = self.body_by_id[execution_id]["backfill"]["since"]
            self.status_by_id[execution_id] = "FAILED" if since in self.failing else "COMPLETED"
        return {"status": self.status_by_id[execution_id]}

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        assert path == "/api/state/value"
        self.puts.append(body)
        return body

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open."""


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> FakePlanner:
    fake = FakePlanner()
    monkeypatch.setattr(client, "open_client", lambda _: fake)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return fake


def asked(*options: str, until: str = "2024-01-05") -> Result:
    words = ["backfill", "p/load", "--from", "2024-01-01", "--to", until, "--every", "1d"]
    return CliRunner().invoke(app, [*words, *options])


def ranges(planner: FakePlanner) -> list[str]:
    return [body["backfill"]["since"] for body in planner.body_by_id.values()]


def test_every_range_runs_and_is_told(planner: FakePlanner) -> None:
    done = asked("--set", "shop=x")
    assert done.exit_code == ExitCode.OK
    assert ranges(planner) == ["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04"]
    assert planner.body_by_id["1"]["workload"] == {"shop": "x"}
    lines = done.stdout.splitlines()
    assert lines[0] == "1 of 4: 2024-01-01 to 2024-01-02 completed, execution 1"
    assert len(lines) == 4
    assert planner.most_running == 1


def test_several_run_at_once(planner: FakePlanner) -> None:
    assert asked("--parallel", "3").exit_code == ExitCode.OK
    assert planner.most_running == 3


def test_a_repeated_command_begins_nothing_twice(planner: FakePlanner) -> None:
    asked()
    again = asked()
    assert len(planner.body_by_id) == 4
    assert "4 of 4 ranges were done before: --name NAME runs them again." in again.stderr
    longer = asked(until="2024-01-07")
    assert longer.exit_code == ExitCode.OK
    assert len(planner.body_by_id) == 6
    asked("--name", "again")
    assert len(planner.body_by_id) == 10


def test_after_a_failure_no_other_range_begins_and_the_next_command_begins_it_again(
    planner: FakePlanner,
) -> None:
    planner.failing = {"2024-01-02"}
    done = asked("--move-state")
    assert done.exit_code == ExitCode.FAILED
    assert ranges(planner) == ["2024-01-01", "2024-01-02"]
    assert "See why: noetl status 2" in done.stderr
    assert "1 failed, 2 not begun." in done.stderr
    assert planner.puts == []
    planner.failing = set()
    again = asked()
    assert again.exit_code == ExitCode.OK
    assert ranges(planner)[2:] == ["2024-01-02", "2024-01-03", "2024-01-04"]


def test_ctrl_c_leaves_runs_running_and_the_next_command_follows_them(
    planner: FakePlanner,
) -> None:
    planner.looks_left = 1
    stopped = asked("--parallel", "2")
    assert stopped.exit_code == ExitCode.CANCELLED
    assert "Stopped: 1 of 4 ranges have ended, 1 run on." in stopped.stderr
    begun = len(planner.body_by_id)
    planner.looks_left = 10_000
    assert asked("--parallel", "2").exit_code == ExitCode.OK
    assert len(planner.body_by_id) == 4
    assert begun == 2


def test_the_state_moves_at_the_end_alone_and_only_when_it_is_wanted(planner: FakePlanner) -> None:
    asked()
    assert planner.puts == []
    done = asked("--move-state")
    (put,) = planner.puts
    assert (put["name"], put["value"], put["revision"]) == ("orders", "2024-01-05", 0)
    assert put["reason"] == "backfill from 2024-01-01 to 2024-01-05"
    assert "state orders moved to 2024-01-05" in done.stderr


def test_a_state_that_is_further_stays(planner: FakePlanner) -> None:
    planner.state = {"type": "timestamp", "value": "2024-02-01T00:00:00", "revision": 7}
    done = asked("--move-state")
    assert planner.puts == []
    assert "state orders stays at 2024-02-01T00:00:00" in done.stderr
    planner.state = {"type": "timestamp", "value": "2024-01-02T00:00:00", "revision": 7}
    asked("--move-state")
    assert planner.puts[0]["revision"] == 7


def test_a_state_does_not_move_to_where_rows_may_still_come(planner: FakePlanner) -> None:
    words = ["--from", "2024-01-01", "--to", "2999-01-01", "--move-state"]
    done = CliRunner().invoke(app, ["backfill", "p", *words])
    assert done.exception is not None
    assert planner.body_by_id == {}


def test_programs_read_each_range_as_json(planner: FakePlanner) -> None:
    done = asked("--json")
    assert '"since":"2024-01-01"' in done.stdout.splitlines()[0].replace(" ", "")
