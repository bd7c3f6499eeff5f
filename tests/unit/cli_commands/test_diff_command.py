"""`noetl diff`: what differs between two runs, and what its exit code says of it."""

import json
from typing import Any

import pytest
from tests.support.canned_api import Answers, serve_answers
from typer.testing import CliRunner, Result

from noetl_cli.__main__ import app
from noetl_cli.errors import ExitCode

STEP = {
    "step": "load",
    "status": "COMPLETED",
    "runs": 1,
    "retries": 0,
    "started_at": "2026-01-01T00:00:00Z",
    "ended_at": "2026-01-01T00:00:01Z",
    "duration": 1.0,
    "came_from": None,
    "error": None,
}
RESULT = {"step": "load", "row_count": None, "digest": "a" * 64}


def a_run(number: int, *, steps: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "execution_id": str(number),
        "path": "demo/orders",
        "playbook_version": 1,
        "status": "COMPLETED",
        "version": 9,
        "duration": 1.0 * number,
        "workload": {"day": 5},
        "more_runs": False,
        "steps": [STEP] if steps is None else steps,
        **fields,
    }


def compare(
    one: dict[str, Any],
    other: dict[str, Any],
    *options: str,
    results: tuple[Any, Any] = (RESULT, RESULT),
) -> Result:
    answers: Answers = {}
    for run, result in zip((one, other), results, strict=True):
        run_id = run["execution_id"]
        answers[f"GET /api/executions/{run_id}/moment"] = 200, run
        shown = [] if result is None else [result]
        answers[f"GET /api/result/{run_id}/list"] = 200, {"results": shown}
    with serve_answers(answers) as api:
        words = ["diff", one["execution_id"], other["execution_id"], "--server", api.url]
        return CliRunner().invoke(app, [*words, *options])


def test_runs_that_differ_in_nothing_but_time_are_alike() -> None:
    done = compare(a_run(1), a_run(2))
    assert done.exit_code == ExitCode.OK, done.output
    assert done.stdout.splitlines()[-1] == "alike"
    assert "COMPLETED after 2.0 s" in done.stdout


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"steps": [{**STEP, "status": "FAILED"}]}, "status"),
        ({"steps": [{**STEP, "error": {"code": "x"}}]}, "error"),
        ({"steps": [{**STEP, "runs": 3}]}, "runs: 1, 3"),
        ({"steps": [{**STEP, "retries": 2}]}, "retries: 0, 2"),
        ({"steps": [{**STEP, "came_from": "begin"}]}, "came from"),
        ({"steps": []}, "only in the first run"),
        ({"steps": [STEP, {**STEP, "step": "end"}]}, "only in the second run"),
    ],
)
def test_each_difference_of_a_step_is_said(changed: dict[str, Any], text: str) -> None:
    done = compare(a_run(1), a_run(2, **changed))
    assert done.exit_code == ExitCode.FAILED, done.output
    assert text in done.stdout
    assert "alike" not in done.stdout


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({**RESULT, "digest": "b" * 64}, "  result"),
        ({**RESULT, "row_count": 7}, "rows: -, 7"),
        (None, "  result"),
    ],
)
def test_results_differ_by_digest_and_by_rows(result: Any, text: str) -> None:
    done = compare(a_run(1), a_run(2), results=(RESULT, result))
    assert done.exit_code == ExitCode.FAILED, done.output
    assert done.stdout.splitlines()[-1].endswith(text), done.stdout


@pytest.mark.parametrize(
    ("workload", "cells"),
    [
        ({"day": "5"}, ["day", "5", '"5"']),
        ({"day": None}, ["day", "5", "null"]),
        ({}, ["day", "5", "-"]),
        ({"day": True}, ["day", "5", "true"]),
    ],
)
def test_a_text_a_null_and_a_missing_input_are_shown_apart(workload: Any, cells: list[str]) -> None:
    done = compare(a_run(1), a_run(2, workload=workload))
    assert done.exit_code == ExitCode.FAILED, done.output
    assert cells in [line.split() for line in done.stdout.splitlines()]


def test_true_is_no_number_one() -> None:
    one, other = a_run(1, workload={"n": [1]}), a_run(2, workload={"n": [True]})
    assert compare(one, other).exit_code == ExitCode.FAILED


def test_json_has_all_that_the_tables_show() -> None:
    done = compare(a_run(1), a_run(2, workload={"day": 6}), "--output", "json")
    assert done.exit_code == ExitCode.FAILED, done.output
    shown = json.loads(done.stdout)
    assert shown["is_alike"] is False
    assert shown["inputs"] == [{"name": "day", "one": 5, "other": 6}]
    assert shown["steps"][0]["one_digest"] == RESULT["digest"]
    assert shown["steps"][0]["differences"] == []


def test_a_run_of_another_playbook_is_not_alike() -> None:
    done = compare(a_run(1), a_run(2, path="demo/other"), "--output", "json")
    assert done.exit_code == ExitCode.FAILED, done.output
    assert json.loads(done.stdout)["differences"] == ["path"]


def test_runs_that_are_not_shown_whole_are_never_called_alike() -> None:
    done = compare(a_run(1), a_run(2, more_runs=True))
    assert getattr(done.exception, "exit_code", None) == ExitCode.USAGE
    assert "no more can be said" in str(done.exception)


def test_what_cannot_be_compared_is_trouble_and_no_difference() -> None:
    with serve_answers({}) as api:
        done = CliRunner().invoke(app, ["diff", "1", "2", "--server", api.url])
    assert getattr(done.exception, "exit_code", None) == ExitCode.USAGE
    gone = CliRunner().invoke(app, ["diff", "1", "2", "--server", "http://127.0.0.1:1"])
    assert getattr(gone.exception, "exit_code", None) == ExitCode.USAGE
