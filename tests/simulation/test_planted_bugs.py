"""Defects that are planted are found: a simulation that finds nothing proves nothing."""

import pytest
from tests.simulation.bugs import BUGS, Bug
from tests.simulation.world import simulate

# All are hunted by `python -m tests.simulation.hunt`; these show within a few seeds.
SEEDS_MAX = 60
QUICK = (
    "the planner acknowledges before it commits",
    "the projector acknowledges before it writes",
    "an append does not check its fence",
    "nothing makes `loop.done` unique",
    "the projector skips gaps",
    "a worker runs what was delivered before",
    "a result is reported before it is stored",
    "the results of rows are not masked",
)


@pytest.mark.parametrize(
    "bug", [bug for bug in BUGS if bug.name in QUICK], ids=lambda bug: bug.name
)
def test_a_planted_defect_is_found(bug: Bug) -> None:
    with bug.planted():
        assert any(simulate(seed).violations for seed in range(SEEDS_MAX))
