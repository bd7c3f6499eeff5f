# ruff: noqa: E501 - a playbook reads best with one task to a line
"""What arcs and `set` blocks see of results that are lists, and of failures."""

from msgspec import structs
from tests.support.planning import WORKER, PlannerHarness, done

from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"

LISTS = (
    HEAD
    + """
workflow:
  - step: s
    tool:
      - {name: one, kind: python, code: "result = [1, 9]"}
      - {name: two, kind: python, code: "result = [1]"}
    set: {ctx.data: "{{ s.data }}", ctx.one: "{{ s.one[1] }}", ctx.all: "{{ s.results.one }}", ctx.n: "{{ s | length }}", ctx.sum: "{{ s + [2] }}"}
"""
)

FAILURE = (
    HEAD
    + """
workflow:
  - step: s
    tool: {kind: http, url: "http://x"}
    next: {arcs: [{step: t, on: call.error, set: {ctx.http: "{{ output.http }}", ctx.data: "{{ output.data is defined }}", ctx.again: "{{ error.retryable }}"}}]}
  - {step: t, tool: {kind: noop}}
"""
)

EPOCHS = (
    HEAD
    + """
workflow:
  - step: s
    tool: {kind: http, url: "http://x"}
    output: {accumulate: {merge_path: items}}
    next: {arcs: [{step: s}]}
"""
)


def kept(**tasks: TaskResult) -> ResultEnvelope:
    last = list(tasks)[-1]
    return ResultEnvelope(
        status="ok",
        context=result_envelope.build_inline_context(PipelineResult(tasks=tasks, last=last)),
    )


def test_names_reach_through_a_result_that_is_a_list() -> None:
    harness = PlannerHarness(LISTS)
    harness.start()
    (first,) = harness.sent()
    result = kept(one=TaskResult(kind="python", raw=[1, 9]), two=TaskResult(kind="python", raw=[1]))
    harness.tell(structs.replace(done(first), result=result))
    expected = {"data": [1], "one": 9, "all": [1, 9], "n": 1, "sum": [1, 2]}
    assert harness.state.ctx == expected


def test_a_failure_without_an_answer_has_no_data_and_an_empty_http() -> None:
    harness = PlannerHarness(FAILURE)
    harness.start()
    (first,) = harness.sent()
    error = ErrorObject(kind="connection", message="refused")
    result = kept(s_task=TaskResult(kind="http", raw=None, error={"kind": "connection"}))
    harness.tell(
        facts.CommandFailed(
            command_id=first.command_id,
            attempt=first.attempt,
            worker_id=WORKER,
            error=error,
            result=result,
        )
    )
    assert harness.state.ctx == {"http": {}, "data": False, "again": False}


def test_a_step_that_accumulates_is_sent_its_own_earlier_result() -> None:
    harness = PlannerHarness(EPOCHS)
    harness.start()
    (first,) = harness.sent()
    assert first.slice.steps == {}
    harness.tell(done(first, {"items": [1]}))
    (second,) = harness.sent()
    assert list(second.slice.steps) == ["s"]


MADE = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
  - step: s
    tool: {kind: noop}
    next:
      arcs: [{step: e, when: "{{ output.meta.attempt == 2 }}",
              set: {ctx.by: "{{ output.meta.worker_id }}", ctx.ms: "{{ output.meta.duration_ms }}"}}]
  - {step: e, tool: {kind: noop}}
"""


def test_arcs_know_which_attempt_of_whom_made_a_result_and_how_long_it_took() -> None:
    harness = PlannerHarness(MADE)
    harness.start()
    (first,) = harness.sent()
    harness.wait(2)
    harness.tell(facts.CommandLost(command_id=first.command_id, attempt=1, reason="lease_expired"))
    (second,) = harness.sent()
    harness.wait(1)
    harness.tell(done(second))
    assert harness.state.ctx == {"by": WORKER, "ms": 3000}
