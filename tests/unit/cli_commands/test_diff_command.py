"""`noetl diff`: how a comparison is printed, and what its exit code says of it."""

import json
from typing import Any

from tests.support.canned_api import serve_answers
from typer.testing import CliRunner, Result

from noetl_cli.__main__ import app
from noetl_cli.errors import ExitCode

DIGEST = "a" * 64


def a_run(number: int) -> dict[str, Any]:
    return {
        "execution_id": str(number),
        "path": "demo/orders",
        "playbook_version": 1,
        "status": "COMPLETED",
        "version": 9,
        "duration": 1.0 * number,
    }


def a_step(*differences: str, other: Any = None) -> dict[str, Any]:
    return {
        "step": "load",
        "one": {"status": "COMPLETED"},
        "other": other,
        "one_digest": DIGEST,
        "other_digest": None,
        "differences": list(differences),
    }


def compare(*options: str, **fields: Any) -> Result:
    answer = {
        "one": a_run(1),
        "other": a_run(2),
        "is_alike": False,
        "differences": [],
        "inputs": [],
        "steps": [],
        "not_compared": [],
        **fields,
    }
    with serve_answers({"GET /api/executions/1/difference": (200, answer)}) as api:
        done = CliRunner().invoke(app, ["diff", "1", "2", "--server", api.url, *options])
    assert api.asked == ["GET /api/executions/1/difference?with=2"]
    return done


def test_runs_that_are_alike_are_called_so() -> None:
    done = compare(is_alike=True)
    assert done.exit_code == ExitCode.OK, done.output
    assert done.stdout.splitlines()[-1] == "alike"
    assert "COMPLETED after 2.0 s" in done.stdout


def test_a_step_is_shown_with_what_differs_of_it() -> None:
    done = compare(steps=[a_step("only in the first run")])
    assert done.exit_code == ExitCode.FAILED, done.output
    assert "alike" not in done.stdout
    line = done.stdout.splitlines()[-1]
    assert line.split() == [
        "load", "COMPLETED", "-", DIGEST[:12], "-", "only", "in", "the", "first", "run"
    ]  # fmt: skip


def test_a_text_a_null_and_a_missing_input_are_shown_apart() -> None:
    inputs = [
        {"name": "day", "one": 5, "other": "5"},
        {"name": "hour", "one": None},
    ]
    done = compare(inputs=inputs)
    assert done.exit_code == ExitCode.FAILED, done.output
    cells = [line.split() for line in done.stdout.splitlines()]
    assert ["day", "5", '"5"'] in cells
    assert ["hour", "null", "-"] in cells


def test_json_has_all_that_the_planner_says() -> None:
    done = compare("--output", "json", steps=[a_step("status", other={"status": "FAILED"})])
    assert done.exit_code == ExitCode.FAILED, done.output
    shown = json.loads(done.stdout)
    assert shown["is_alike"] is False
    assert shown["steps"][0]["differences"] == ["status"]


def test_what_was_left_out_is_said() -> None:
    done = compare(not_compared=["results"])
    assert done.exit_code == ExitCode.FAILED, done.output
    assert "Not compared: results." in done.stderr


def test_runs_that_are_not_shown_whole_are_never_called_alike() -> None:
    done = compare(is_alike=None, not_compared=["runs of steps"])
    assert getattr(done.exception, "exit_code", None) == ExitCode.USAGE
    assert "no more can be said" in str(done.exception)
    assert "runs of steps" in str(done.exception)


def test_what_cannot_be_compared_is_trouble_and_no_difference() -> None:
    with serve_answers({}) as api:
        done = CliRunner().invoke(app, ["diff", "1", "2", "--server", api.url])
    assert getattr(done.exception, "exit_code", None) == ExitCode.USAGE
    gone = CliRunner().invoke(app, ["diff", "1", "2", "--server", "http://127.0.0.1:1"])
    assert getattr(gone.exception, "exit_code", None) == ExitCode.USAGE
