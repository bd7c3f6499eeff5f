"""An archive of two units as an event lake, and the questions of its page."""

import re
from collections.abc import AsyncIterator
from pathlib import Path

import duckdb
from msgspec import structs
from tests.support.builders import (
    ORGANIZATION,
    TENANT,
    History,
    a_cursor_loop,
    a_failed_run,
    a_lost_worker,
)
from tests.support.retaining import of_the_month

from noetl_contracts.ledger import archive_format, upcasters
from noetl_contracts.ledger.archive_format import ManifestUnit
from noetl_contracts.ledger.stored_event import StoredEvent, to_stored_event
from noetl_replay.fold import FOLD_VERSION
from noetl_storage.archive import units
from noetl_storage.payloads.factory import open_payloads

_PAGE = Path(__file__).parents[2] / "docs/reference/event-lake.md"
_SQL = re.compile(r"```sql\n(.*?)```", re.DOTALL)
VIEW, *QUESTIONS = _SQL.findall(_PAGE.read_text())
HISTORIES = [
    of_the_month(item, number)
    for number, item in enumerate([a_failed_run(), a_lost_worker(), a_cursor_loop()])
]
EVENTS = [to_stored_event(envelope) for history in HISTORIES for envelope in history.envelopes]


async def fill(folder: Path) -> Path:
    """Archive the histories below a folder; return the lake's own."""
    unit = ManifestUnit(
        manifest_id="7",
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        month=archive_format.find_start_month(HISTORIES[0].execution_id),
        planned_at=HISTORIES[0].envelopes[0].event_time,
        fold_version=FOLD_VERSION,
        upcaster_digest=upcasters.digest_registry(),
    )
    async with open_payloads(f"file://{folder}") as store:
        await units.write_unit(store, unit, _events(HISTORIES[:1]))
        other = structs.replace(unit, manifest_id="8")
        await units.write_unit(store, other, _events(HISTORIES[1:]), part_events_max=20)
    return folder / f"tenant/{TENANT}/org/{ORGANIZATION}/named/archive/v1"


def connect(lake: Path) -> duckdb.DuckDBPyConnection:
    """Open DuckDB with the page's view of a lake."""
    connection = duckdb.connect()
    connection.execute(VIEW.replace("LAKE", str(lake)))
    return connection


def question(number: int, **words: str) -> str:
    """Return the page's nth question, with words in their places."""
    text: str = QUESTIONS[number]
    for word, value in words.items():
        text = text.replace(word, value)
    return text


def a_digest() -> str:
    """Return the digest of an object that an event refers to."""
    return next(
        item.event["rows_ref"]["sha256"]
        for item in EVENTS
        if item.event["event_type"] == "frame.dispatched"
    )


async def _events(histories: list[History]) -> AsyncIterator[StoredEvent]:
    for history in histories:
        for envelope in history.envelopes:
            yield to_stored_event(envelope)
