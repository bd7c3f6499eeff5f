"""However often a run is held, whatever the transport does: the same end."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.test_planner_orders import PLAYBOOK, TURNS_MAX, Transport
from tests.support.planning import Desk

from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import Limits


def _hold(desk: Desk, number: int) -> None:
    desk.tell(facts.PauseRequested(request_id=f"pause-{number}"))


def _go_on(desk: Desk, number: int) -> None:
    desk.tell(facts.ResumeRequested(request_id=f"resume-{number}"))


def _end_slots(desk: Desk) -> None:
    """Let the workers of slots end after their frame, as a held execution wants it."""
    for live in list(desk.state.commands.values()):
        if live.slot is not None:
            desk.tell(
                facts.CommandLost(
                    command_id=live.command_id,
                    attempt=live.attempt,
                    reason="released",
                    is_release=True,
                )
            )


@settings(max_examples=100)
@given(st.integers(min_value=0, max_value=2**32))
def test_pauses_at_any_moment_change_nothing_but_the_time(seed: int) -> None:
    desk = Desk(PLAYBOOK, limits=Limits(step_attempts_max=1000))
    desk.start()
    chance = random.Random(seed)
    transport = Transport(desk, chance)
    holds = 0
    for _ in range(TURNS_MAX):
        if desk.state.is_terminal():
            break
        fate = chance.random()
        is_held = desk.state.paused_at is not None
        if not is_held and fate < 0.05:
            holds += 1
            _hold(desk, holds)
        elif is_held and fate < 0.2:
            _go_on(desk, holds)
        elif is_held and fate < 0.4:
            _end_slots(desk)
        transport.work()
        desk.wait(0.3)
        if transport.waiting:
            transport.step()
        else:
            transport.lose_idle()
            desk.tell(facts.TimerDue())
        if desk.state.paused_at is not None:
            assert desk.sent() == [], seed
    types = desk.types()
    assert types[-1] == "playbook.completed", (seed, types[-5:])
    committed = [event.frame_id for event in desk.events("frame.committed")]
    assert sorted(committed) == sorted(transport.source.owned), seed
    assert types.count("loop.done") == 1
