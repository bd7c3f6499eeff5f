"""The whole system under every fault, seed by seed: it comes to rest, and the invariants hold."""

import pytest
from tests.simulation.world import simulate

# `make test` goes on from there on every core (`tests/simulation/explore.py`).
SEEDS = 40
BATCH = 10


@pytest.mark.parametrize("first", range(0, SEEDS, BATCH))
def test_the_system_comes_to_rest_and_every_invariant_holds(first: int) -> None:
    for seed in range(first, first + BATCH):
        outcome = simulate(seed)
        assert outcome.violations == [], f"make test/simulation SEED={seed}"


@pytest.mark.parametrize("seed", [3, 24, 44])
def test_the_same_seed_gives_the_same_trace_byte_for_byte(seed: int) -> None:
    first = simulate(seed, keeps_trace=True)
    # Nor does it depend on where in memory things lie.
    elsewhere = [object() for _ in range(1000 * seed)]
    second = simulate(seed, keeps_trace=True)
    assert elsewhere
    assert first.trace == second.trace
    assert first == second
