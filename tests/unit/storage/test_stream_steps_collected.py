"""Which steps of a stream's source the collection of payloads removes."""

from datetime import UTC, datetime
from typing import Any

from noetl_storage.payloads import garbage
from noetl_storage.ports.payload_ports import StoredObject

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def steps(name: str, last: int) -> list[StoredObject]:
    """The steps of a stream from the first to the last."""
    about: dict[str, Any] = {"modified_at": NOW, "stored_bytes": 1}
    return [
        StoredObject(name=f"streams/{name}/arrivals/{number:012d}", **about)
        for number in range(1, last + 1)
    ]


def numbers_of(objects: list[StoredObject]) -> list[int]:
    return [int(item.name.rpartition("/")[2]) for item in objects]


def test_steps_go_when_two_later_ones_list_all_files() -> None:
    assert garbage.list_older_steps(steps("orders", 127)) == []
    assert numbers_of(garbage.list_older_steps(steps("orders", 128))) == list(range(1, 64))
    assert numbers_of(garbage.list_older_steps(steps("orders", 195))) == list(range(1, 128))


def test_each_stream_is_looked_at_alone() -> None:
    both = [*steps("orders", 130), *steps("people", 10)]
    assert numbers_of(garbage.list_older_steps(both)) == list(range(1, 64))
