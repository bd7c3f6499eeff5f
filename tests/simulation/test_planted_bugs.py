"""Defects that are planted are found: a simulation that finds nothing proves nothing."""

import pytest
from tests.simulation import hunt
from tests.simulation.bugs import BUGS

# All are hunted by `python -m tests.simulation.hunt`; these show within a few seeds.
SEEDS_MAX = 60
QUICK = (
    "the planner acknowledges before it commits",
    "the projector acknowledges before it writes",
    "an append does not check its fence",
    "nothing makes `loop.done` unique",
    "the projector skips gaps",
    "a projection's position is not compared",
    "a worker runs what was delivered before",
    "a result is reported before it is stored",
    "the results of rows are not masked",
)


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_defect_is_found(name: str) -> None:
    number = next(place for place, bug in enumerate(BUGS) if bug.name == name)
    assert hunt.hunt(number, SEEDS_MAX).seed is not None
