"""`noetl doctor --server`: what the API of a server elsewhere tells, and what to do about it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.canned_api import Answers, serve_answers
from typer.testing import CliRunner, Result

from noetl_cli.__main__ import app

HEALTH, WHO = "GET /api/health", "GET /api/auth/whoami"
SERVICES, POOLS = "GET /api/health/services", "GET /api/pools"
SETTING = {"name": "postgres fsync", "found": "on", "is_well": True, "way_out": ""}
LANES = [{"lane": "io", "pending": 3, "unsettled": 2}]
POOL = {"name": "default", "transport": "jetstream", "served": True, "lanes": LANES}
WORKERS = "GET /api/workers"
WORKER = {
    "worker_id": "w-1",
    "pool": "default",
    "lanes": ["io"],
    "locality": {},
    "running": 2,
    "capacity": 64,
    "free": 62,
    "store_waits": 0,
    "missing_walls": [],
}
WELL: Answers = {
    HEALTH: (200, {"status": "ok", "problems": {}}),
    WHO: (200, {"tenant": "default", "organization": "default"}),
    SERVICES: (
        200,
        {
            "outbox": {"rows": 2, "oldest_s": 0.4, "is_well": True},
            "projectors": [{"consumer": "projector-0", "lag": 5, "is_served": True}],
            "settings": [SETTING],
            "problems": {},
        },
    ),
    POOLS: (200, {"pools": [POOL]}),
    WORKERS: (200, {"workers": [WORKER]}),
}


def look(changes: Mapping[str, Any], *options: str) -> Result:
    with serve_answers({**WELL, **changes}) as api:
        return CliRunner().invoke(app, ["doctor", "--server", api.url, *options])


def checks_of(changes: Mapping[str, Any]) -> dict[str, Any]:
    done = look(changes, "--json")
    told = msgspec.json.decode(done.stdout)
    assert done.exit_code == (0 if told["ok"] else 1)
    return {check["name"]: check for check in told["checks"]}


def services_with(**changes: Any) -> dict[str, Any]:
    return {SERVICES: (200, {**WELL[SERVICES][1], **changes})}


def test_a_server_that_is_well_is_shown_part_by_part() -> None:
    checks = checks_of({})
    assert {check["verdict"] for check in checks.values()} == {"ok"}
    assert checks["outbox"]["found"] == "2 messages wait, the oldest for 0.4 s"
    assert checks["projector-0"]["found"] == "5 messages behind"
    assert checks["pool default"]["found"] == "3 commands wait, 2 run"
    assert checks["worker w-1 io"]["found"] == "2 of 64 commands run"
    assert checks["postgres fsync"]["found"] == "on"
    assert "acts for default/default" in look({}).stdout


def test_each_store_with_which_something_is_wrong_is_named() -> None:
    problems = {"payloads": "the bucket refuses writes", "nats": "not connected"}
    checks = checks_of({HEALTH: (200, {"status": "degraded", "problems": problems})})
    assert checks["planner"]["verdict"] == "fail"
    for name, text in problems.items():
        assert checks[f"planner {name}"]["verdict"] == "fail"
        assert checks[f"planner {name}"]["found"] == text
        assert checks[f"planner {name}"]["way_out"]


def test_what_waits_too_long_or_for_nobody_fails() -> None:
    checks = checks_of(
        services_with(
            outbox={"rows": 9, "oldest_s": 61.0, "is_well": False},
            projectors=[{"consumer": "projector-0", "lag": 70, "is_served": False}],
            settings=[{**SETTING, "found": "off", "is_well": False, "way_out": "set fsync=on"}],
        )
    )
    assert "outbox-stalled" in checks["outbox"]["way_out"]
    assert "no projector asks" in checks["projector-0"]["found"]
    assert checks["postgres fsync"]["way_out"] == "set fsync=on"
    assert {checks[name]["verdict"] for name in ("outbox", "projector-0", "postgres fsync")} == {
        "fail"
    }


def test_a_part_that_could_not_be_asked_is_told_with_its_reason() -> None:
    changes = services_with(projectors=None, problems={"projectors": "NATS is away"})
    checks = checks_of(changes)
    assert checks["projectors"]["verdict"] == "fail"
    assert "NATS is away" in checks["projectors"]["found"]


@pytest.mark.parametrize(("pending", "verdict"), [(0, "warn"), (3, "fail")])
def test_a_pool_without_a_worker_fails_where_commands_wait(pending: int, verdict: str) -> None:
    lanes = [{"lane": "io", "pending": pending, "unsettled": 0}]
    checks = checks_of({POOLS: (200, {"pools": [{**POOL, "served": False, "lanes": lanes}]})})
    assert checks["pool default"]["verdict"] == verdict
    assert "NOETL_WORKER_POOL=default" in checks["pool default"]["way_out"]


@pytest.mark.parametrize("untold", [None, "left out"])
def test_a_worker_tells_of_its_store_and_of_the_walls_around_tasks(untold: str | None) -> None:
    def look_at(**changes: Any) -> Any:
        worker = {**WORKER, **changes}
        if untold and "missing_walls" not in changes:
            del worker["missing_walls"]
        return checks_of({WORKERS: (200, {"workers": [worker]})})["worker w-1 io"]

    away = look_at(store_waits=3)
    assert (away["verdict"], "3 calls wait" in away["found"]) == ("fail", True)
    assert "store-away" in away["way_out"]
    loose = look_at(missing_walls=["reading", "network"])
    assert (loose["verdict"], "reading, network" in loose["found"]) == ("warn", True)
    assert "seccomp" in loose["way_out"]
    assert look_at(missing_walls=None)["verdict"] == "ok"


def test_who_may_not_look_is_told_so_and_sees_the_rest() -> None:
    refused = (403, {"detail": "administer is needed", "code": "forbidden"})
    checks = checks_of({SERVICES: refused})
    assert checks["services"]["verdict"] == "warn"
    assert "noetl whoami" in checks["services"]["way_out"]
    assert checks["pool default"]["verdict"] == "ok"
    unknown = checks_of({WHO: (401, {"detail": "sign in", "code": "not_signed_in"})})
    assert unknown["sign-in"]["verdict"] == "warn"
    assert unknown["planner"]["verdict"] == "ok"


def test_a_named_server_is_looked_at_and_the_stack_of_a_folder_stays_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_HOME", str(tmp_path / "none"))
    with serve_answers(WELL) as api:
        monkeypatch.setenv("NOETL_SERVER", api.url)
        remote = CliRunner().invoke(app, ["doctor", "--json"])
        assert api.asked
        asked = len(api.asked)
        local = CliRunner().invoke(app, ["doctor", "--json", "--dir", str(tmp_path / "none")])
        assert len(api.asked) == asked
    assert '"planner"' in remote.stdout
    assert "never started" in local.stdout


def test_a_server_that_does_not_answer_is_named() -> None:
    done = CliRunner().invoke(app, ["doctor", "--server", "http://127.0.0.1:1"])
    assert done.exit_code != 0
    assert "http://127.0.0.1:1" in done.output + done.stderr + str(done.exception)
