"""The questions of docs/event-lake.md, asked of an archive as an auditor would ask them."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import duckdb
import pytest
from msgspec import structs
from tests.support.builders import (
    ORGANIZATION,
    TENANT,
    History,
    a_cursor_loop,
    a_failed_run,
    a_lost_worker,
)
from tests.support.retaining import MONTH, moved

from noetl_contracts import archives, upcast
from noetl_contracts.archives import Unit
from noetl_contracts.stored import StoredEvent, of
from noetl_replay.fold import FOLD_VERSION
from noetl_storage.archive import units
from noetl_storage.payloads.open import open_payloads

PAGE = Path(__file__).parents[3] / "docs/event-lake.md"
SQL = re.compile(r"```sql\n(.*?)```", re.DOTALL)
HISTORIES = [
    moved(one, number)
    for number, one in enumerate([a_failed_run(), a_lost_worker(), a_cursor_loop()])
]
EVENTS = [of(one) for history in HISTORIES for one in history.envelopes]


async def events(histories: list[History]) -> AsyncIterator[StoredEvent]:
    for history in histories:
        for one in history.envelopes:
            yield of(one)


@pytest.fixture
async def ask(tmp_path: Path) -> Any:
    """Ask the page's nth question of an archive of two units."""
    unit = Unit(
        manifest_id="7",
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        month=archives.month_of(HISTORIES[0].execution_id),
        planned_at=HISTORIES[0].envelopes[0].event_time,
        fold_version=FOLD_VERSION,
        upcaster_digest=upcast.digest(),
    )
    async with open_payloads(f"file://{tmp_path}") as store:
        await units.write(store, unit, events(HISTORIES[:1]))
        other = structs.replace(unit, manifest_id="8")
        await units.write(store, other, events(HISTORIES[1:]), part_events_max=20)
    lake = tmp_path / f"tenant/{TENANT}/org/{ORGANIZATION}/named/archive/v1"
    view, *questions = SQL.findall(PAGE.read_text())
    connection = duckdb.connect()
    connection.execute(view.replace("LAKE", str(lake)))

    def answer(number: int, **words: str) -> list[tuple[Any, ...]]:
        text = questions[number]
        for word, value in words.items():
            text = text.replace(word, value)
        found: list[tuple[Any, ...]] = connection.execute(text).fetchall()
        return found

    yield answer
    connection.close()


def bodies(kind: str) -> list[dict[str, Any]]:
    return [one.event for one in EVENTS if one.event["event_type"] == kind]


async def test_which_runs_failed(ask: Any) -> None:
    found = ask(0)
    assert {row[0] for row in found} == {
        int(one.execution_id) for one in EVENTS if one.event.get("error")
    }
    assert sum(row[3] for row in found) == sum(bool(one.event.get("error")) for one in EVENTS)


async def test_who_carried_out_what_and_what_began_again(ask: Any) -> None:
    begun = bodies("command.started")
    found = ask(1)
    assert sum(row[2] for row in found) == len(begun)
    assert sum(row[3] for row in found) == sum(one["attempt"] > 1 for one in begun) > 0


async def test_how_many_rows_a_step_committed(ask: Any) -> None:
    committed = bodies("frame.committed")
    [(month, step, frames, rows)] = ask(2)
    assert (str(month)[:7], step) == (MONTH, committed[0]["step"])
    assert (frames, rows) == (len(committed), sum(one["row_count"] for one in committed))


async def test_whether_every_history_is_whole(ask: Any) -> None:
    assert ask(3) == []


async def test_who_touched_an_object(ask: Any) -> None:
    digest = bodies("frame.dispatched")[0]["rows_ref"]["sha256"]
    found = ask(4, DIGEST=digest)
    assert found
    assert all(row[0] == int(HISTORIES[2].execution_id) for row in found)
    assert "frame.dispatched" in {row[2] for row in found}
