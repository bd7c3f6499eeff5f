"""Slow conditions: the loop of the planner goes on, and each error is the template's own."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import informers
from tests.support.loop_lag import measure_fork_s, watch_loop
from tests.support.one_shard import World, assert_sound

from noetl_chassis import computation_deadline
from noetl_contracts import codec
from noetl_contracts.events import get_event_type
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.requests import facts
from noetl_playbook.templates import render_limits
from noetl_playbook.templates.expressions import compile_condition
from noetl_playbook.templates.render_limits import RenderLimits

HELD_MAX_S = 0.05
STEP = """\
  - step: s
    tool: {kind: noop}
    next: {arcs: [{step: after, when: "WHEN"}]}
  - {step: after, tool: {kind: noop}}
"""
SLOW = "{{ (range(99999) | map('string') | select('in', '1' * 9) | list | length) > 1 }}"
ENDLESS = "{{ ('a' * 64 ~ '!') | regex_search('(a+)+$') }}"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    limits = RenderLimits(seconds=1)
    monkeypatch.setattr(render_limits, "PLANNER", limits)
    victims = {
        name: STEP.replace("WHEN", when)
        for name, when in {"slow": SLOW, "endless": ENDLESS}.items()
    }
    opened = World(tmp_path, victims)
    with computation_deadline.own_deadline_timer() as guard, render_limits.install_guard(guard):
        yield opened
    opened.close()


def finish_first(world: World, path: str) -> tuple[list[Envelope], list[float]]:
    """Let a step end whose arcs are slow; return the history, and how long the loop was held."""
    execution_id = world.begin(path)
    (live,) = world.state(execution_id).commands.values()
    done = facts.CommandCompleted(
        command_id=live.command_id,
        attempt=live.attempt,
        worker_id=informers.WORKER,
        result=informers.RESULT,
    )
    world.send(codec.encode_json(world.batch(execution_id, done)))
    # Compiled once for all executions.
    compile_condition(SLOW)
    compile_condition(ENDLESS)

    async def take_turn() -> list[float]:
        async with watch_loop() as lag:
            await world.planner.run_turn()
        return lag.held_over(HELD_MAX_S + 2 * measure_fork_s())

    held = world.run(take_turn())
    assert_sound(world, execution_id)
    return world.history(execution_id), held


def test_slow_condition_decides_as_a_quick_one_does(world: World) -> None:
    history, held = finish_first(world, "slow")
    assert "step.enter" in [get_event_type(item.event) for item in history[3:]]
    assert held == []


def test_endless_condition_fails_its_step_in_the_first_turn(world: World) -> None:
    history, held = finish_first(world, "endless")
    error = history[-1].event.error  # type: ignore[union-attr]  # as asserted below
    assert get_event_type(history[-1].event) == "playbook.failed"
    assert (error.kind, error.step) == ("limit", "s")
    assert "field 'next.arcs[0].when'" in error.message
    assert "takes longer than 1 s" in error.message
    assert held == []
