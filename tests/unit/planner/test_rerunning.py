from tests.support.planning import PlannerHarness, done

from noetl_contracts.events.execution_events import InheritedStep, RerunSource
from noetl_contracts.ids import ExecutionId, RunId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_contracts.status import ExecutionStatus, RunStatus
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
CHAIN = (
    HEAD
    + """
workload: {n: 1, fresh: "{{ n + 1 }}"}
workflow:
  - {step: one, tool: {kind: noop}, next: {arcs: [{step: two}]}}
  - step: two
    tool: {kind: noop}
    set: {ctx.sum: "{{ one.v + workload.n + ctx.seen }}"}
    next: {arcs: [{step: three}]}
  - {step: three, tool: {kind: noop, result: "{{ one.v }}"}}
"""
)


def before(name: str, value: object, run: str = "77") -> InheritedStep:
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="python", raw=value)}, last="t")
    return InheritedStep(
        step=name,
        run_id=RunId(run),
        status=RunStatus.COMPLETED,
        result=ResultEnvelope(
            status="ok", context=result_envelope.build_inline_context(pipeline_result)
        ),
    )


def from_two(*steps: InheritedStep, **workload: object) -> facts.ExecutionRequested:
    return facts.ExecutionRequested(
        path="p",
        workload=workload,
        rerun=facts.Rerun(
            source=RerunSource(execution_id=ExecutionId("7"), version=9, step="two"),
            came_from="one",
            inherited=facts.InheritedState(
                workload={"n": 5, "fresh": "kept"},
                ctx={"seen": 100},
                steps=list(steps) or [before("one", {"v": 10})],
            ),
        ),
    )


def test_a_rerun_begins_at_its_step_with_what_was_there_before() -> None:
    harness = PlannerHarness(CHAIN)
    types = harness.tell(from_two())
    assert types == ["playbook.initialized", "execution.inherited", "step.enter", "command.issued"]
    begun = harness.events("playbook.initialized")[0]
    assert (begun.source.execution_id, begun.source.version, begun.entry_step) == ("7", 9, "two")
    assert begun.workload == {"n": 5, "fresh": "kept"}
    (command,) = harness.sent()
    assert (command.step, command.slice.came_from) == ("two", "one")
    assert command.slice.ctx == {"seen": 100}
    harness.tell(done(command))
    assert harness.state.ctx["sum"] == 10 + 5 + 100
    (last,) = harness.sent()
    assert last.slice.steps["one"].result == before("one", {"v": 10}).result
    harness.tell(done(last))
    assert harness.state.status is ExecutionStatus.COMPLETED


def test_other_inputs_are_laid_over_those_of_the_source() -> None:
    harness = PlannerHarness(CHAIN)
    harness.tell(from_two(n=6))
    assert harness.state.workload == {"n": 6, "fresh": "kept"}


def test_a_repeated_request_begins_once() -> None:
    harness = PlannerHarness(CHAIN)
    harness.tell(from_two())
    assert harness.tell(from_two()) == []


def test_much_that_is_taken_over_comes_in_parts() -> None:
    harness = PlannerHarness(CHAIN)
    many = [before(f"s{n}", {"v": "x" * 900}, run=str(n + 1)) for n in range(100)]
    harness.tell(from_two(before("one", {"v": 10}), *many))
    parts = harness.events("execution.inherited")
    assert [part.part for part in parts] == list(range(len(parts)))
    assert len(parts) > 5
    assert sum(len(part.steps) for part in parts) == 101
    assert len(harness.state.steps) == 102
    assert len({item.idempotency_key for item in harness.history}) == len(harness.history)
