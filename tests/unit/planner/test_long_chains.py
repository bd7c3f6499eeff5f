"""A step of a long playbook costs what a step of a short one does, counted in Python's calls."""

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from tests.support.planning import PlannerHarness, done

from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.parse.steps import STEPS_MAX
from noetl_projector.domain.read_models import is_snapshot_due

STEPS = 1_200
WATCHED = 50


class Visits(dict[str, Any]):
    """The steps of a state, which count how many of them are walked over."""

    visited = 0

    def items(self) -> Any:
        return self._walked(super().items())

    def values(self) -> Any:
        return self._walked(super().values())

    def __iter__(self) -> Iterator[str]:
        return self._walked(super().__iter__())

    def _walked(self, found: Any) -> Any:
        for item in found:
            self.visited += 1
            yield item


def chain(count: int) -> str:
    lines = [
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: chain}\nworkflow:",
        *(
            f"  - {{step: s{at}, tool: {{kind: noop}}, next: {{arcs: [{{step: s{at + 1}}}]}}}}"
            for at in range(count - 1)
        ),
        f"  - {{step: s{count - 1}, tool: {{kind: noop}}}}\n",
    ]
    return "\n".join(lines)


def calls_of(work: Callable[[], object]) -> int:
    """Count the calls of functions, of Python and of C, that work makes."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def advance(harness: PlannerHarness, count: int) -> None:
    for _ in range(count):
        harness.tell(done(harness.sent()[0], {"n": 1}))


def test_the_last_steps_of_a_chain_cost_what_the_first_ones_do() -> None:
    harness = PlannerHarness(chain(STEPS))
    harness.start()
    advance(harness, WATCHED)
    first = calls_of(lambda: advance(harness, WATCHED))
    advance(harness, STEPS - 3 * WATCHED - 1)
    last = calls_of(lambda: advance(harness, WATCHED))
    assert len(harness.state.steps) > STEPS - WATCHED
    assert last < first * 1.1


def test_a_decision_walks_over_no_steps() -> None:
    harness = PlannerHarness(chain(300))
    harness.start()
    advance(harness, 250)
    visits = Visits(harness.state.steps)
    harness.state.steps = visits
    advance(harness, 10)
    assert harness.state.steps is visits
    assert visits.visited == 0


@pytest.mark.parametrize("length", [16_000, 128_000])
def test_snapshots_of_a_whole_state_grow_rarer_with_it(length: int) -> None:
    harness = PlannerHarness(chain(2))
    harness.start()
    taken: list[int] = []
    for version in range(0, length, 100):
        harness.state.version = version
        if is_snapshot_due(
            harness.state, remembered=taken[-1] if taken else 0, every=1_000, at_end_after=200
        ):
            taken.append(version)
    # A state grows with its versions: what is written of it is in proportion to the history.
    assert len(taken) > 10
    assert sum(taken) < 18 * length


def test_a_playbook_of_more_steps_than_the_bound_is_refused() -> None:
    assert STEPS_MAX == 20_000
    refused = parse_playbook(chain(STEPS_MAX + 1))
    assert [problem.code for problem in refused.problems] == ["E601"]
    assert str(STEPS_MAX) in refused.problems[0].message
