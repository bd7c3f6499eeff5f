"""What a real run would have decided under another version of its playbook."""

from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.asking import http
from tests.support.servers import wait_until
from tests.support.stack import Stack

EXAMPLES = Path(__file__).parents[2] / "examples"
ROUTE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: route, path: route}
workload: {limit: 10}
workflow:
  - step: measure
    tool: {kind: noop, result: {n: 7, items: [1, 2, 3]}}
    next:
      arcs:
        - {step: large, when: "{{ measure.data.n > workload.limit }}"}
        - {step: each}
  - {step: large, tool: {kind: noop, result: large}}
  - step: each
    loop: {in: "{{ measure.data['items'] }}", iterator: i, spec: {mode: parallel}}
    tool: {kind: noop, result: "{{ iter.i * 2 }}"}
    next: {arcs: [{step: frames}]}
  - step: frames
    loop: {in: "{{ range(300) | list }}", iterator: i, spec: {mode: chunked, chunk_size: 100}}
    tool: {kind: noop, result: "{{ iter.i }}"}
    set: {ctx.total: "{{ frames.stats.success }}"}
    next: {arcs: [{step: end, when: "{{ ctx.total == 300 }}"}]}
  - {step: end, tool: {kind: noop, result: 1}}
"""


def run(stack: Stack, text: str) -> str:
    url = stack.url("api")
    begun = http.post(f"{url}/api/execute", json={"content": text}, timeout=30)
    execution_id = str(begun.raise_for_status().json()["execution_id"])

    def has_ended() -> bool:
        found = http.get(f"{url}/api/executions/{execution_id}", timeout=60).json()
        return found["status"] in {"COMPLETED", "FAILED"}

    wait_until(has_ended, timeout_s=60, what="the run has ended")
    return execution_id


def ask(stack: Stack, execution_id: str, **body: Any) -> httpx.Response:
    url = f"{stack.url('api')}/api/executions/{execution_id}/counterfactual"
    return http.post(url, json=body, timeout=30)


def compare(stack: Stack, execution_id: str, text: str) -> Any:
    return ask(stack, execution_id, content=text).raise_for_status().json()


def test_the_same_text_decides_the_same(stack: Stack) -> None:
    found = compare(stack, run(stack, ROUTE), ROUTE)
    assert (found["is_equal"], found["decided_status"]) == (True, "COMPLETED")
    assert [(one["step"], one["basis"]) for one in found["steps"]] == [
        *(("measure", "recorded"), ("each", "recorded")),
        *(("frames", "recorded"), ("end", "recorded")),
    ]


def test_a_registered_version_is_decided_at_an_address_alone(stack: Stack) -> None:
    execution_id = run(stack, ROUTE)
    found = compare(stack, execution_id, ROUTE)
    address = f"{stack.url('api')}/api/executions/{execution_id}/counterfactual"
    version = found["recorded_version"]
    shown = http.get(address, params={"other": version}, timeout=30).raise_for_status().json()
    assert shown == found
    assert http.get(address, timeout=30).status_code == HTTPStatus.BAD_REQUEST
    past = http.get(address, params={"other": version, "as_of": 2}, timeout=30)
    assert (past.status_code, past.json()["code"]) == (HTTPStatus.CONFLICT, "decided_as_a_whole")


def test_another_route_ends_where_nothing_was_recorded(stack: Stack) -> None:
    found = compare(stack, run(stack, ROUTE), ROUTE.replace("workload.limit", "5"))
    assert (found["is_equal"], found["decided_status"]) == (False, "UNDECIDED")
    by_step = {one["step"]: one for one in found["steps"]}
    assert by_step["measure"]["recorded"]["targets"] == ["each"]
    assert by_step["measure"]["decided"]["targets"] == ["large"]
    assert (by_step["large"]["basis"], by_step["large"]["decided"]) == ("unknown", None)
    assert by_step["end"]["decided"] is None
    assert not any(one["is_equal"] for one in found["steps"])


def test_other_work_is_not_taken_for_the_recorded_one(stack: Stack) -> None:
    execution_id = run(stack, ROUTE)
    found = compare(stack, execution_id, ROUTE.replace("iter.i * 2", "iter.i * 3"))
    by_step = {one["step"]: one["basis"] for one in found["steps"]}
    assert (by_step["measure"], by_step["each"]) == ("recorded", "assumed")
    found = compare(stack, execution_id, ROUTE.replace("range(300)", "range(400)"))
    assert {one["step"]: one["basis"] for one in found["steps"]}["frames"] == "assumed"


def test_nothing_is_written_by_it(stack: Stack) -> None:
    execution_id = run(stack, ROUTE)
    url = f"{stack.url('api')}/api/executions/{execution_id}/events"
    before = http.get(url, params={"limit": 1000}, timeout=60).json()
    compare(stack, execution_id, ROUTE.replace("workload.limit", "5"))
    assert http.get(url, params={"limit": 1000}, timeout=60).json() == before


@pytest.mark.parametrize(
    "name",
    [
        *("accumulate", "admission", "branching", "drain-after-failure", "exhausted-retry"),
        *("failure-arcs", "failure-policies", "loop-chunked", "loop-local", "loop-parallel"),
        *("loop-rows", "loop-sources", "split-and-join", "unhandled-failure"),
    ],
)
def test_examples_decide_as_they_did(stack: Stack, name: str) -> None:
    text = (EXAMPLES / f"{name}.yaml").read_text()
    found = compare(stack, run(stack, text), text)
    assert found["is_equal"], found


def test_what_cannot_be_decided_again_is_refused(stack: Stack) -> None:
    text = (EXAMPLES / "fan-out-and-reduce.yaml").read_text()
    answer = ask(stack, run(stack, text), content=text)
    assert (answer.status_code, answer.json()["code"]) == (409, "cannot_decide_again")
    assert "'total'" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"content": ROUTE, "version": 1}, 400),
        ({"content": "workflow: ["}, 422),
        ({"content": f"{ROUTE}---\n{ROUTE.replace('route', 'other')}"}, 400),
        ({"version": 77}, 404),
        ({"text": ROUTE}, 400),
    ],
)
def test_requests_that_name_no_other_version_are_refused(
    stack: Stack, body: dict[str, Any], status: int
) -> None:
    assert ask(stack, run(stack, ROUTE), **body).status_code == status


def test_an_execution_that_is_not_there_has_no_counterfactual(stack: Stack) -> None:
    assert ask(stack, "12", content=ROUTE).status_code == 404
