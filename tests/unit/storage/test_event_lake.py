"""The questions of docs/reference/event-lake.md, asked of an archive as an auditor asks them."""

from pathlib import Path
from typing import Any

import pytest
from tests.support import lake
from tests.support.lake import EVENTS, HISTORIES
from tests.support.retaining import MONTH


@pytest.fixture
async def ask(tmp_path: Path) -> Any:
    """Ask the page's nth question of an archive of two units."""
    connection = lake.connect(await lake.fill(tmp_path))

    def answer(number: int, **words: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = connection.execute(lake.question(number, **words)).fetchall()
        return found

    yield answer
    connection.close()


def bodies(kind: str) -> list[dict[str, Any]]:
    return [item.event for item in EVENTS if item.event["event_type"] == kind]


async def test_which_runs_failed(ask: Any) -> None:
    found = ask(0)
    assert {row[0] for row in found} == {
        int(item.execution_id) for item in EVENTS if item.event.get("error")
    }
    assert sum(row[3] for row in found) == sum(bool(item.event.get("error")) for item in EVENTS)


async def test_who_carried_out_what_and_what_began_again(ask: Any) -> None:
    begun = bodies("command.started")
    found = ask(1)
    assert sum(row[2] for row in found) == len(begun)
    assert sum(row[3] for row in found) == sum(item["attempt"] > 1 for item in begun) > 0


async def test_how_many_rows_a_step_committed(ask: Any) -> None:
    committed = bodies("frame.committed")
    [(month, step, frames, rows)] = ask(2)
    assert (str(month)[:7], step) == (MONTH, committed[0]["step"])
    assert (frames, rows) == (len(committed), sum(item["row_count"] for item in committed))


async def test_whether_every_history_is_whole(ask: Any) -> None:
    assert ask(3) == []


async def test_who_touched_an_object(ask: Any) -> None:
    found = ask(4, DIGEST=lake.a_digest())
    assert found
    assert all(row[0] == int(HISTORIES[2].execution_id) for row in found)
    assert "frame.dispatched" in {row[2] for row in found}
