"""Old markers of effects are removed, and no late attempt takes effect twice because of that."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from tests.support.attempting import attempt, site_of
from tests.support.working import EXECUTION, Bench, bench

from noetl_chassis import identity
from noetl_contracts.ids import ExecutionId
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.tools.calls.call import Outcome
from noetl_worker.tools.postgres import old_markers
from noetl_worker.tools.postgres.effects import open_effects

TARGET = {
    "type": "postgres",
    "auth": "db",
    "table": "totals",
    "key": "id",
    "mode": "upsert",
    "set": {"total": "target.total + source.total"},
}
OLD = old_markers.KEPT + timedelta(days=1)
# It began before everything that a test makes old.
ANCIENT = ExecutionId(identity.build_first_identity(datetime(2024, 2, 1, tzinfo=UTC)))
YOUNG = ExecutionId(identity.build_first_identity(datetime.now(UTC)))


@pytest.fixture
async def worker(tmp_path: Path, database: str) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path)) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


@pytest.fixture
async def db(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database)
    await connection.execute("create table totals(id int primary key, total int)")
    await connection.execute("insert into totals values (1, 0)")
    yield connection
    await connection.close()


async def add_one(worker: Bench, site: UnitScope, visit: int) -> Outcome:
    """Let an attempt add 1 to the total."""
    source = {"type": "data", "data": [{"id": 1, "total": 1}]}
    fields = {"source": source, "target": TARGET}
    return await attempt(worker, "transfer", fields, at=site, visit=visit)


async def make_old(db: Any, *where: str) -> None:
    """Let the markers of executions be old, and the next turn to prune be due."""
    for execution_id in where:
        await db.execute(
            "update noetl_effect set committed_at = now() - $2::interval where execution_id = $1",
            execution_id,
            OLD,
        )
    await db.execute(
        "update noetl_effect set committed_at = now() - interval '2 hours' "
        "where execution_id = 'noetl/pruning'"
    )


async def list_markers(db: Any) -> list[str]:
    rows = await db.fetch(
        "select distinct execution_id from noetl_effect where frame_id <> '' order by 1"
    )
    return [row["execution_id"] for row in rows]


async def test_a_late_attempt_whose_marker_was_pruned_is_refused(worker: Bench, db: Any) -> None:
    first = site_of(execution_id=ANCIENT, is_repeated=False)
    late = site_of(execution_id=ANCIENT)
    assert (await add_one(worker, first, 1)).error is None
    # The marker is there: the attempt finds what was done.
    assert (await add_one(worker, late, 1)).error is None
    await make_old(db, ANCIENT)
    assert (await add_one(worker, site_of(execution_id=YOUNG), 1)).error is None
    assert await list_markers(db) == [YOUNG]
    refused = await add_one(worker, late, 1)
    assert refused.error is not None
    assert (refused.error.code, refused.error.retryable) == ("EFFECT_UNKNOWN", False)
    assert "began on 2024-02-01" in refused.error.message
    assert await db.fetchval("select total from totals") == 2
    # Work that nobody can have done before is done, and so is that of later executions.
    assert (await add_one(worker, first, 2)).error is None
    assert (await add_one(worker, site_of(execution_id=YOUNG), 2)).error is None
    assert await db.fetchval("select total from totals") == 4
    # A marker that came later does not tell of those that are gone.
    assert (await add_one(worker, late, 1)).error is not None
    assert await db.fetchval("select total from totals") == 4


async def test_an_execution_that_goes_on_keeps_all_of_its_markers(worker: Bench, db: Any) -> None:
    await add_one(worker, site_of(execution_id=ANCIENT), 1)
    await add_one(worker, site_of(execution_id=EXECUTION), 1)
    await make_old(db, ANCIENT, EXECUTION)
    # It commits again, and another one has nothing but old markers.
    await db.execute(
        "insert into noetl_effect (execution_id, frame_id) values ($1, 'new')", ANCIENT
    )
    await add_one(worker, site_of(execution_id=YOUNG), 1)
    assert await list_markers(db) == sorted([ANCIENT, YOUNG])
    again = await add_one(worker, site_of(execution_id=ANCIENT), 1)
    assert again.error is None
    # A first effect after all that: none of its markers is gone.
    assert (await add_one(worker, site_of(execution_id=ANCIENT), 2)).error is None
    assert await db.fetchval("select total from totals") == 4


async def test_a_frame_whose_marker_was_pruned_is_refused_and_leaves_none(
    worker: Bench, db: Any
) -> None:
    await add_one(worker, site_of(execution_id=ANCIENT), 1)
    await make_old(db, ANCIENT)
    late = site_of(execution_id=ANCIENT, frame_id="f")
    with pytest.raises(ToolFailure, match="nobody can tell whether the work took effect"):
        async with open_effects(worker.tools.postgres, auth="db", site=late) as effects:
            await effects.begin_effects()
    assert await list_markers(db) == []
    first = site_of(execution_id=ANCIENT, frame_id="f", is_repeated=False)
    async with open_effects(worker.tools.postgres, auth="db", site=first) as effects:
        assert await effects.begin_effects() is None
        await effects.commit_effects({})
    assert await list_markers(db) == [ANCIENT]


async def test_the_latest_batch_of_a_stream_stays(worker: Bench, db: Any) -> None:
    await add_one(worker, site_of(execution_id=YOUNG), 1)
    for days in (300, 200, 100):
        await db.execute(
            "insert into noetl_effect values ('stream/orders/a', $1, null, now() - $2::interval)",
            f"batch/{300 - days}",
            timedelta(days=days),
        )
    await make_old(db)
    await old_markers.prune_markers(db)
    rows = await db.fetch("select frame_id from noetl_effect where execution_id like 'stream/%'")
    assert [row["frame_id"] for row in rows] == ["batch/200"]


async def test_a_database_that_lets_nobody_delete_keeps_its_markers(worker: Bench, db: Any) -> None:
    await add_one(worker, site_of(execution_id=ANCIENT), 1)
    await make_old(db, ANCIENT)
    await db.execute(
        "create function refuse() returns trigger language plpgsql as "
        "$$ begin raise exception 'nothing is deleted here'; end $$;"
        "create trigger keep before delete on noetl_effect execute function refuse()"
    )
    assert (await add_one(worker, site_of(execution_id=YOUNG), 1)).error is None
    assert await list_markers(db) == sorted([ANCIENT, YOUNG])
    assert (await add_one(worker, site_of(execution_id=ANCIENT), 1)).error is None
    assert await db.fetchval("select total from totals") == 2
