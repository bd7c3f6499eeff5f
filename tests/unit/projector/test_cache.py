"""The bounds of the state cache."""

from tests.support.builders import ORGANIZATION, TENANT

from noetl_contracts.ids import ExecutionId
from noetl_projector.domain.cache import Held, StateCache
from noetl_replay import state


def held(number: int, *, padding: int = 0) -> Held:
    begun = state.empty(ExecutionId(str(number)), TENANT, ORGANIZATION)
    begun.ctx = {"padding": "x" * padding}
    return Held(begun, remembered=0)


def test_the_least_recently_used_state_goes_first() -> None:
    cache = StateCache(states_max=2, bytes_max=1_000_000)
    for number in (1, 2):
        cache.put(held(number))
    cache.find(ExecutionId("1"))
    cache.put(held(3))
    cache.settle([])
    assert list(cache) == ["1", "3"]


def test_heavy_states_leave_fewer_of_them() -> None:
    cache = StateCache(states_max=100, bytes_max=25_000)
    for number in range(10):
        cache.put(held(number, padding=10_000))
    cache.settle([])
    assert len(cache) == 2
    assert cache.bytes <= 25_000


def test_a_state_that_grew_is_weighed_again() -> None:
    cache = StateCache(states_max=100, bytes_max=1_000_000)
    grown = held(1)
    cache.put(grown)
    grown.state.ctx = {"padding": "x" * 50_000}
    grown.state.version += 1000
    cache.settle([ExecutionId("1")])
    assert cache.bytes > 50_000


def test_replacing_and_dropping_keep_the_books() -> None:
    cache = StateCache(states_max=100, bytes_max=1_000_000)
    cache.put(held(1, padding=10))
    cache.put(held(1, padding=2000))
    cache.drop(ExecutionId("1"))
    cache.drop(ExecutionId("1"))
    assert (len(cache), cache.bytes) == (0, 0)
