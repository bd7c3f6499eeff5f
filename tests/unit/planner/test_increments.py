"""A step that reads increments records where it begins, and its success alone moves the state."""

from typing import Any

import pytest
from msgspec import UNSET, structs
from tests.support.planning import WORKER, PlannerHarness, done

from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.state_values import (
    IncrementRange,
    ProposedState,
    StateRecord,
    StateType,
    StateValue,
)
from noetl_contracts.commands.worker_pools import Pools
from noetl_contracts.errors import ErrorObject
from noetl_contracts.requests import facts
from noetl_contracts.status import ExecutionStatus
from noetl_planner.domain.decision.draft import Limits, StateNeeded
from noetl_replay.fold import fold_history
from noetl_replay.history_replay import show_state
from noetl_replay.state import build_empty_state

HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p}\nworkflow:\n"


def playbook(incremental: str, rest: str = "") -> str:
    return (
        f"{HEAD}  - step: load\n    incremental: {{{incremental}}}\n"
        f"    tool: {{kind: postgres, auth: a, query: select 1}}\n{rest}"
    )


BY_TIME = playbook('cursor: at, from: state.orders, lag: 2h, initial: "2024-01-01"')
BY_NUMBER = playbook("cursor: id, from: state.orders, initial: 0")


def moment(text: str) -> StateValue:
    return StateValue(type=StateType.TIMESTAMP, value=text)


def number(value: int) -> StateValue:
    return StateValue(type=StateType.INTEGER, value=value)


def record(value: StateValue, revision: int) -> StateRecord:
    return StateRecord(name="orders", value=value, revision=revision)


def begun(text: str, present: StateRecord | None = None) -> tuple[PlannerHarness, Command]:
    harness = PlannerHarness(text)
    harness.values["orders"] = present
    harness.start()
    (command,) = harness.sent()
    return harness, command


def completed(command: Command, value: StateValue | None, rows: int = 3) -> Any:
    proposed = ProposedState(name="orders", value=value, rows=rows)
    return structs.replace(done(command, 1), state=proposed)


def test_a_value_that_is_not_loaded_is_asked_for() -> None:
    harness = PlannerHarness(BY_TIME)
    with pytest.raises(StateNeeded) as asked:
        harness.start()
    assert asked.value.name == "orders"


def test_the_first_run_begins_at_the_initial_value() -> None:
    harness, command = begun(BY_TIME)
    assert harness.types()[-2:] == ["state.read", "command.issued"]
    increment = command.slice.increment
    assert increment is not None
    assert (increment.since, increment.revision) == ("2024-01-01T00:00:00", 0)


def test_a_later_run_begins_the_lag_before_the_state() -> None:
    _, command = begun(BY_TIME, record(moment("2024-03-01T01:00:00+00:00"), 4))
    increment = command.slice.increment
    assert increment is not None
    assert increment.since == "2024-02-29T23:00:00+00:00"
    assert (increment.value, increment.revision) == ("2024-03-01T01:00:00+00:00", 4)


def test_a_success_moves_the_state_in_the_decision_that_accepts_it() -> None:
    harness, command = begun(BY_NUMBER, record(number(7), 4))
    events = harness.tell(completed(command, number(12)))
    assert events == [
        *("command.completed", "call.done", "state.changed", "step.exit", "playbook.completed"),
    ]
    (changed,) = harness.events("state.changed")
    assert (changed.value, changed.previous, changed.revision, changed.rows) == (
        *(number(12), number(7)),
        *(5, 3),
    )
    assert harness.last is not None
    (change,) = harness.last.state_changes
    assert (change.path, change.name, change.revision) == ("p", "orders", 5)


@pytest.mark.parametrize("value", [None, number(7), number(6)])
def test_nothing_moves_without_a_greater_cursor(value: StateValue | None) -> None:
    harness, command = begun(BY_NUMBER, record(number(7), 4))
    harness.tell(completed(command, value))
    assert harness.events("state.changed") == []
    assert harness.state.status is ExecutionStatus.COMPLETED


def test_the_first_rows_may_lie_where_reading_began() -> None:
    harness, command = begun(BY_NUMBER)
    harness.tell(completed(command, number(0)))
    assert harness.values["orders"] == record(number(0), 1)


def test_a_failure_moves_nothing() -> None:
    harness, command = begun(BY_NUMBER)
    error = ErrorObject(kind="db_error", message="no")
    harness.tell(
        facts.CommandFailed(command_id=command.command_id, attempt=1, worker_id=WORKER, error=error)
    )
    assert harness.values["orders"] is None


def test_a_step_that_fails_by_its_arcs_moves_nothing() -> None:
    rest = '    set: {ctx.x: "{{ 1 // (0 * 1) }}"}\n'
    harness, command = begun(playbook("cursor: id, from: state.orders, initial: 0", rest))
    harness.tell(completed(command, number(9)))
    assert harness.state.status is ExecutionStatus.FAILED
    assert harness.values["orders"] is None


def test_a_cancelled_execution_moves_nothing() -> None:
    harness, command = begun(BY_NUMBER)
    harness.tell(facts.CancelRequested())
    harness.tell(completed(command, number(9)))
    assert harness.state.status is ExecutionStatus.CANCELLED
    assert harness.values["orders"] is None


def test_a_repeated_attempt_moves_the_state_once() -> None:
    harness, command = begun(BY_NUMBER)
    harness.tell(facts.CommandLost(command_id=command.command_id, attempt=1, reason="killed"))
    (again,) = harness.sent()
    assert again.slice.increment == command.slice.increment
    later = completed(again, number(9))
    harness.tell(completed(command, number(9)), later, later)
    assert len(harness.events("state.changed")) == 1
    assert harness.values["orders"] == record(number(9), 1)


def test_a_state_that_moved_meanwhile_fails_the_step_and_says_so() -> None:
    harness, command = begun(BY_NUMBER, record(number(7), 4))
    harness.values["orders"] = record(number(9), 5)
    harness.tell(completed(command, number(12)))
    assert harness.events("state.changed") == []
    failure = harness.state.failure
    assert failure is not None
    assert failure.kind == "state_conflict"
    assert "had revision 4 when it began and has revision 5 (9) now" in failure.message


def test_a_worker_that_does_not_say_how_far_it_read_fails_the_step() -> None:
    harness, command = begun(BY_NUMBER)
    told = done(command, 1)
    assert told.state is UNSET
    harness.tell(told)
    failure = harness.state.failure
    assert failure is not None
    assert "has not said how far it read" in failure.message


def test_a_backfill_reads_its_range_and_moves_nothing() -> None:
    harness = PlannerHarness(BY_TIME)
    increment_range = IncrementRange(since="2024-01-01", until="2024-01-02")
    harness.tell(facts.ExecutionRequested(path="p", backfill=increment_range))
    (command,) = harness.sent()
    increment = command.slice.increment
    assert increment is not None
    assert (increment.since, increment.until) == ("2024-01-01T00:00:00", "2024-01-02T00:00:00")
    harness.tell(completed(command, moment("2024-01-01T10:00:00")))
    assert harness.state.status is ExecutionStatus.COMPLETED
    assert harness.events("state.changed") == []


@pytest.mark.parametrize(
    ("incremental", "present", "reason"),
    [
        (
            'cursor: a, from: state.orders, initial: "{{ 1.5 }}", type: integer',
            None,
            "write a whole number",
        ),
        (
            "cursor: a, from: state.orders, initial: 0, lag: \"{{ 'x' }}\"",
            record(number(7), 1),
            "lag 'x' is not a whole number",
        ),
        (
            "cursor: a, from: state.orders, initial: 0, type: integer",
            record(moment("2024-01-01T00:00:00"), 1),
            "of type timestamp and the step declares integer",
        ),
    ],
)
def test_values_that_do_not_fit_fail_the_step(
    incremental: str, present: StateRecord | None, reason: str
) -> None:
    harness = PlannerHarness(playbook(incremental))
    harness.values["orders"] = present
    harness.start()
    failure = harness.state.failure
    assert failure is not None
    assert failure.kind == "validation"
    assert reason in failure.message


def test_a_pool_over_http_is_refused_before_anything_runs() -> None:
    pools = Pools(by_http=("edge",))
    text = BY_NUMBER.replace("    incremental", "    spec: {pool: edge}\n    incremental", 1)
    harness = PlannerHarness(text, limits=Limits(pools=pools))
    harness.values["orders"] = None
    harness.start()
    failure = harness.state.failure
    assert failure is not None
    assert "a step that reads increments says with its result how far it read" in failure.message
    assert harness.events("state.read") == []


def test_a_replay_shows_the_state_at_any_moment() -> None:
    harness, command = begun(BY_NUMBER, record(number(7), 4))
    harness.tell(completed(command, number(12)))
    state = harness.state
    seen = []
    for until in range(1, len(harness.history) + 1):
        empty = build_empty_state(state.execution_id, state.tenant_id, state.organization_id)
        shown = show_state(fold_history(empty, harness.history[:until]))
        seen.append(shown.get("values", {}).get("orders", {}).get("value", {}).get("value"))
    assert seen == [None, None, 7, 7, 7, 7, 12, 12, 12]
