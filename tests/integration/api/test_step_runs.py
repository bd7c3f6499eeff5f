"""What the steps of an execution did, over the API and on the terminal."""

import msgspec
from tests.support.api import beginning
from tests.support.asking import http
from tests.support.running_api import Noetl, RunningApi
from tests.support.storage import an_execution

from noetl_contracts.commands.task_metrics import RequestMetrics, TaskMetrics
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events.execution_events import PlaybookFailed
from noetl_contracts.events.step_events import StepEnter, StepExit
from noetl_contracts.ids import ExecutionId, RunId
from noetl_contracts.status import RunStatus

FETCHED = TaskMetrics(
    attempts=2,
    failed_attempts=1,
    duration_ms=40,
    requests=2,
    bytes_in=2048,
    last_request=RequestMetrics(method="GET", url="http://api.example/\x1b[2J", status=200),
)
ERROR = ErrorObject(kind="db_error", message="no such table", step="load")


def failing_run(running_api: RunningApi) -> ExecutionId:
    execution_id = an_execution()
    running_api.append(
        execution_id,
        [
            *beginning(),
            StepExit(
                step="start",
                run_id=RunId("11"),
                status=RunStatus.COMPLETED,
                tasks={"fetch": FETCHED},
            ),
            StepEnter(step="load", run_id=RunId("12"), activation=2, came_from="start"),
            StepExit(
                step="load",
                run_id=RunId("12"),
                status=RunStatus.FAILED,
                is_handled=False,
                error=ERROR,
            ),
            PlaybookFailed(error=ERROR, step="load"),
        ],
    )
    running_api.call(running_api.world.project, execution_id)
    return execution_id


def test_a_status_shows_what_each_step_did_and_failed_with(
    running_api: RunningApi, noetl: Noetl
) -> None:
    execution_id = failing_run(running_api)
    outcome = noetl("status", execution_id)
    assert outcome.code == 0, outcome
    lines = {line.split()[0]: line for line in outcome.out.splitlines() if line.strip()}
    assert lines["STEP"].split() == ["STEP", "STATUS", "SECONDS", "WHAT", "IT", "DID"]
    assert "1 failed attempt, 2 requests, last GET http://api.example/" in lines["start"]
    assert "200, 2,048 bytes in" in lines["start"]
    assert "\x1b" not in outcome.out
    assert "db_error: no such table" in lines["load"]
    whole = msgspec.json.decode(noetl("status", execution_id, "--json").out)
    assert [step["step"] for step in whole["steps"]] == ["start", "load"]
    assert whole["steps"][0]["tasks"]["fetch"]["attempts"] == 2
    assert whole["has_more_steps"] is False


def test_runs_come_in_pages(running_api: RunningApi) -> None:
    execution_id = failing_run(running_api)
    url = f"{running_api.url}/api/executions/{execution_id}/steps"
    first = http.get(f"{url}?limit=1", timeout=60).json()
    assert [step["step"] for step in first["steps"]] == ["start"]
    assert first["has_more"] is True
    rest = http.get(f"{url}?limit=1&after={first['next_after']}", timeout=60).json()
    assert [step["step"] for step in rest["steps"]] == ["load"]
    assert (rest["steps"][0]["came_from"], rest["has_more"]) == ("start", False)
    last = http.get(f"{url}?after={rest['next_after']}", timeout=60).json()
    assert last["steps"] == []
    assert last["next_after"] == rest["next_after"]


def test_a_step_that_runs_has_no_end(running_api: RunningApi) -> None:
    execution_id = an_execution()
    running_api.append(execution_id, beginning())
    running_api.call(running_api.world.project, execution_id)
    (run,) = http.get(f"{running_api.url}/api/executions/{execution_id}/steps", timeout=60).json()[
        "steps"
    ]
    assert (run["status"], run["ended_at"]) == ("RUNNING", None)
    assert run["duration"] >= 0


def test_an_unknown_execution_has_no_steps(running_api: RunningApi) -> None:
    assert http.get(f"{running_api.url}/api/executions/77/steps", timeout=60).status_code == 404
    assert http.get(f"{running_api.url}/api/executions/x/steps", timeout=60).status_code == 404
