"""What decoded payloads weigh, and how much of them a worker remembers."""

import sys
from typing import Any

import pytest

from noetl_worker.payloads.memory_estimate import estimate_memory
from noetl_worker.payloads.tenant_payloads import PayloadCache


def exactly(value: Any) -> int:
    """Add up every object."""
    match value:
        case dict():
            held = sum(exactly(key) + exactly(item) for key, item in value.items())
        case list():
            held = sum(map(exactly, value))
        case _:
            held = 0
    return sys.getsizeof(value) + held


def rows(count: int) -> list[dict[str, Any]]:
    return [{"id": n, "text": "x" * 50, "of": [n, {"deep": str(n)}]} for n in range(count)]


@pytest.mark.parametrize("count", [0, 1, 16, 17, 1000])
def test_a_weight_is_about_that_of_every_object(count: int) -> None:
    value = {"rows": rows(count), "columns": ["id", "text", "of"]}
    assert estimate_memory(value) == pytest.approx(exactly(value), rel=0.05)


def test_what_is_nested_deeper_than_any_payload_has_a_weight_too() -> None:
    value: list[Any] = []
    for _ in range(500):
        value = [value]
    assert estimate_memory(value) > 0
    assert estimate_memory(None) == sys.getsizeof(None)


def test_a_worker_remembers_as_much_as_it_has_memory_for() -> None:
    one = exactly(rows(100))
    remembered = PayloadCache(bytes_max=5 * one)
    for number in range(50):
        remembered.keep_value(str(number), rows(100), size_bytes=one // 8)
    numbers = [number for number in range(50) if remembered.find_value(str(number)) is not None]
    assert numbers[-1] == 49
    assert len(numbers) in {4, 5}


def test_the_latest_collection_stays_although_its_rows_weigh_more_than_the_bound() -> None:
    large = rows(1000)
    remembered = PayloadCache(bytes_max=exactly(large) // 2)
    remembered.keep_value("small", [1], size_bytes=3)
    remembered.keep_value("large", large, size_bytes=exactly(large) // 8)
    assert remembered.find_value("large") is large
    assert remembered.find_value("small") is None
    remembered.keep_value("next", [2], size_bytes=3)
    assert remembered.find_value("large") is None
    assert remembered.find_value("next") == [2]
    remembered.forget_value("next")
    remembered.keep_value("too large as it is stored", [3], size_bytes=exactly(large))
    assert remembered.find_value("too large as it is stored") is None
