"""However often a run is held, whatever the transport does: the same end."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.test_planner_orders import PLAYBOOK, TURNS_MAX, Transport
from tests.support.planning import PlannerHarness

from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import Limits


def _hold(harness: PlannerHarness, number: int) -> None:
    harness.tell(facts.PauseRequested(request_id=f"pause-{number}"))


def _go_on(harness: PlannerHarness, number: int) -> None:
    harness.tell(facts.ResumeRequested(request_id=f"resume-{number}"))


def _end_slots(harness: PlannerHarness) -> None:
    """Let the workers of slots end after their frame, as a held execution wants it."""
    for command in list(harness.state.commands.values()):
        if command.slot is not None:
            harness.tell(
                facts.CommandLost(
                    command_id=command.command_id,
                    attempt=command.attempt,
                    reason="released",
                    is_release=True,
                )
            )


@settings(max_examples=100)
@given(st.integers(min_value=0, max_value=2**32))
def test_pauses_at_any_moment_change_nothing_but_the_time(seed: int) -> None:
    harness = PlannerHarness(PLAYBOOK, limits=Limits(step_attempts_max=1000))
    harness.start()
    chance = random.Random(seed)
    transport = Transport(harness, chance)
    holds = 0
    for _ in range(TURNS_MAX):
        if harness.state.is_terminal():
            break
        fate = chance.random()
        is_held = harness.state.paused_at is not None
        if not is_held and fate < 0.05:
            holds += 1
            _hold(harness, holds)
        elif is_held and fate < 0.2:
            _go_on(harness, holds)
        elif is_held and fate < 0.4:
            _end_slots(harness)
        transport.work()
        harness.wait(0.3)
        if transport.waiting:
            transport.step()
        else:
            transport.lose_idle()
            harness.tell(facts.TimerDue())
        if harness.state.paused_at is not None:
            assert harness.sent() == [], seed
    types = harness.types()
    assert types[-1] == "playbook.completed", (seed, types[-5:])
    committed = [event.frame_id for event in harness.events("frame.committed")]
    assert sorted(committed) == sorted(transport.source.owned), seed
    assert types.count("loop.done") == 1
