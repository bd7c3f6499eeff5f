"""The bounds of the state cache."""

from tests.support.builders import ORGANIZATION, TENANT

from noetl_contracts.ids import ExecutionId
from noetl_projector.domain.state_cache import ProjectedState, StateCache
from noetl_replay import state


def held(number: int, *, padding: int = 0) -> ProjectedState:
    begun = state.build_empty_state(ExecutionId(str(number)), TENANT, ORGANIZATION)
    begun.ctx = {"padding": "x" * padding}
    return ProjectedState(begun, remembered=0)


def test_the_least_recently_used_state_goes_first() -> None:
    cache = StateCache(states_max=2, bytes_max=1_000_000)
    for number in (1, 2):
        cache.put_state(held(number))
    cache.find_state(ExecutionId("1"))
    cache.put_state(held(3))
    cache.enforce_bounds([])
    assert list(cache) == ["1", "3"]


def test_heavy_states_leave_fewer_of_them() -> None:
    cache = StateCache(states_max=100, bytes_max=25_000)
    for number in range(10):
        cache.put_state(held(number, padding=10_000))
    cache.enforce_bounds([])
    assert len(cache) == 2
    assert cache.bytes <= 25_000


def test_a_state_that_grew_is_weighed_again() -> None:
    cache = StateCache(states_max=100, bytes_max=1_000_000)
    grown = held(1)
    cache.put_state(grown)
    grown.state.ctx = {"padding": "x" * 50_000}
    grown.state.version += 1000
    cache.enforce_bounds([ExecutionId("1")])
    assert cache.bytes > 50_000


def test_replacing_and_dropping_keep_the_books() -> None:
    cache = StateCache(states_max=100, bytes_max=1_000_000)
    cache.put_state(held(1, padding=10))
    cache.put_state(held(1, padding=2000))
    cache.drop_state(ExecutionId("1"))
    cache.drop_state(ExecutionId("1"))
    assert (len(cache), cache.bytes) == (0, 0)
