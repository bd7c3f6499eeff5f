"""What the commands of a step say that their tasks did is added up where the step ends."""

from msgspec import structs
from tests.support.planning import WORKER, PlannerHarness, done

from noetl_contracts.commands.task_metrics import RequestMetrics, TaskMetrics
from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\n"
TWO_ITEMS = (
    HEAD
    + """
workflow:
  - step: each
    loop: {in: "{{ [1, 2] }}", iterator: it, spec: {mode: parallel, max_in_flight: 2}}
    tool: {kind: noop}
"""
)
ONE_STEP = HEAD + "workflow:\n  - {step: one, tool: {kind: noop}}\n"
FETCHED = TaskMetrics(
    attempts=3,
    failed_attempts=2,
    duration_ms=40,
    requests=3,
    bytes_in=100,
    last_request=RequestMetrics(method="GET", url="http://a/1", status=200),
)


def test_a_step_tells_what_its_tasks_did() -> None:
    harness = PlannerHarness(ONE_STEP)
    harness.start()
    (command,) = harness.sent()
    harness.tell(structs.replace(done(command, 1), tasks={"fetch": FETCHED}))
    (completed,) = harness.events("command.completed")
    assert completed.tasks == {"fetch": FETCHED}
    (exited,) = harness.events("step.exit")
    assert exited.tasks == {"fetch": FETCHED}


def test_items_are_added_up_the_failed_ones_too() -> None:
    harness = PlannerHarness(TWO_ITEMS)
    harness.start()
    first, second = harness.sent()
    refused = RequestMetrics(method="GET", url="http://a/2", status=500)
    harness.tell(structs.replace(done(first, 1), tasks={"fetch": FETCHED}))
    harness.tell(
        facts.CommandFailed(
            command_id=second.command_id,
            attempt=second.attempt,
            worker_id=WORKER,
            error=ErrorObject(kind="server_error", message="no"),
            tasks={"fetch": TaskMetrics(attempts=1, failed_attempts=1, last_request=refused)},
        )
    )
    (run_id,) = harness.state.runs
    harness.tell(facts.ItemsCollected(run_id=run_id, result=ResultEnvelope(status="ok")))
    (failed,) = harness.events("command.failed")
    assert failed.tasks["fetch"].attempts == 1
    (exited,) = harness.events("step.exit")
    assert exited.tasks == {
        "fetch": structs.replace(FETCHED, attempts=4, failed_attempts=3, last_request=refused)
    }


def test_a_step_that_says_nothing_has_none() -> None:
    harness = PlannerHarness(ONE_STEP)
    harness.start()
    (command,) = harness.sent()
    harness.tell(done(command, 1))
    (exited,) = harness.events("step.exit")
    assert exited.tasks == {}
