"""Loops whose workers get several items at once, under every fault: each item ends once."""

from collections import Counter
from typing import Any

import pytest
from tests.simulation import workflows, world
from tests.simulation.world import simulate

from noetl_contracts.events.loop_events import LoopItemsReturned
from noetl_planner.domain.loops import batches
from noetl_planner.domain.steps import commands
from noetl_replay import fold_batches
from noetl_replay.state import ExecutionState

PARTS = {batches: ("end_item",), commands: ("issue_batch",)}
SEEDS = 40
BATCH = 10


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    calls: Counter[str] = Counter()
    monkeypatch.setattr(world, "draw_workflow", workflows.draw_batched)

    def count(module: Any, name: str) -> None:
        really = getattr(module, name)

        def counting(*args: Any, **named: Any) -> Any:
            calls[name] += 1
            return really(*args, **named)

        monkeypatch.setattr(module, name, counting)

    for module, names in PARTS.items():
        for name in names:
            count(module, name)
    return calls


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_every_item_ends_once_whatever_happens(first: int, counted: Counter[str]) -> None:
    for seed in range(first, first + BATCH):
        outcome = simulate(seed)
        assert outcome.violations == [], f"seed {seed}"
    assert counted["issue_batch"]
    assert counted["end_item"]


def test_a_planner_that_forgets_what_was_given_back_is_found(
    counted: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    really = fold_batches.return_items

    def forgets(state: ExecutionState, event: LoopItemsReturned) -> None:
        really(state, event)
        state.runs[event.run_id].loop.returned = {}  # type: ignore[union-attr]  # a loop's event

    monkeypatch.setattr(fold_batches, "return_items", forgets)
    assert any(simulate(seed).violations for seed in range(SEEDS))
    assert counted["issue_batch"]
