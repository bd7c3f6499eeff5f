"""What the alert on expired leases counts: losses of workers, and nothing else that is repeated."""

import pytest
from tests.support.planning import WORKER, PlannerHarness
from tests.support.slices import frame_failed

from noetl_chassis.observability import instruments, names
from noetl_contracts.commands.command_work import Command
from noetl_contracts.events import command_events
from noetl_contracts.requests import facts
from noetl_planner.shards.decision_telemetry import count_decision

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: p}
workflow:
"""
STEP = HEAD + "  - {step: s, tool: {kind: noop}}\n"
LOOP = (
    HEAD
    + """
  - step: each
    loop: {in: "{{ [1, 2, 3] }}", iterator: it, spec: {mode: chunked, chunk_size: 3}}
    tool: {kind: noop}
"""
)


def begin_command(text: str) -> tuple[PlannerHarness, Command]:
    """Start a playbook whose first command a worker takes."""
    harness = PlannerHarness(text)
    harness.start()
    return harness, take_command(harness)


def take_command(harness: PlannerHarness) -> Command:
    (command,) = harness.sent()
    harness.tell(
        facts.CommandStarted(
            command_id=command.command_id, attempt=command.attempt, worker_id=WORKER
        )
    )
    return command


def tell_and_count(harness: PlannerHarness, fact: facts.Fact) -> tuple[float, float]:
    """Decide on a fact; return how many losses of commands and of frames were counted."""
    before = read_counts()
    harness.tell(fact)
    assert harness.last is not None
    count_decision((), harness.last.envelopes, harness.state)
    commands, frames = read_counts()
    return commands - before[0], frames - before[1]


def read_counts() -> tuple[float, float]:
    commands, frames = (
        instruments.get_counter_sum(names.WORK_LOST, labels={names.KIND: kind}).total
        for kind in ("command", "frame")
    )
    return commands, frames


def lose(command: Command, reason: str, *, is_release: bool = False) -> facts.CommandLost:
    return facts.CommandLost(
        command_id=command.command_id,
        attempt=command.attempt,
        reason=reason,
        is_release=is_release,
    )


@pytest.mark.parametrize("reason", sorted(command_events.LOSSES))
def test_a_loss_is_counted_whether_the_reaper_or_a_worker_noticed_it(reason: str) -> None:
    harness, command = begin_command(STEP)
    assert tell_and_count(harness, lose(command, reason)) == (1, 0)
    harness, command = begin_command(LOOP)
    assert tell_and_count(harness, lose(command, reason)) == (1, 1)


def test_the_last_loss_is_counted_too() -> None:
    harness, command = begin_command(STEP)
    losses = 0.0
    while "command.failed" not in harness.types():
        losses += tell_and_count(harness, lose(command, command_events.WORKER_LOST))[0]
        if harness.sent():
            command = take_command(harness)
    assert losses == command.attempt


def test_a_command_that_a_worker_gives_back_is_no_loss() -> None:
    for text in (STEP, LOOP):
        harness, command = begin_command(text)
        released = lose(command, command_events.RELEASED, is_release=True)
        assert tell_and_count(harness, released) == (0, 0)
        assert "command.reissued" in harness.types()


def test_a_frame_that_runs_again_since_its_body_failed_is_no_loss() -> None:
    fanout = "mode: fanout, fanout: {partitions: 1, max_shard_retries: 1}"
    harness, command = begin_command(LOOP.replace("mode: chunked, chunk_size: 3", fanout))
    assert tell_and_count(harness, frame_failed(command)) == (0, 0)
    harness.wait(60)
    assert tell_and_count(harness, facts.TimerDue()) == (0, 0)
    assert {"frame.abandoned", "command.reissued"} <= set(harness.types())
