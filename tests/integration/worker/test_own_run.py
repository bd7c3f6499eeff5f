"""A playbook reads its own run in SQL, through a credential of the reader's role."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support import builders
from tests.support.builders import ORGANIZATION, TENANT, History
from tests.support.storage import make_reader, postgres_stores
from tests.support.working import Bench, bench, command_of

from noetl_contracts.ledger.records import Append, ShardFence
from noetl_contracts.requests.facts import CommandCompleted
from noetl_replay import fold, rows, state
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import open_database

# What the language promises of each view (18).
PROMISED = {
    "event": "event_id, execution_id, event_type, node_name, status, frame_id, stage_id,"
    " created_at",
    "command": "command_id, execution_id, status",
    "execution": "execution_id, path, status",
    "stage": "stage_id, parent_stage_id, execution_id, step_name, kind, status",
    "frame": "frame_id, stage_id, execution_id, status, row_count, attempts, completed_at",
}


@pytest.fixture
async def story(database: str) -> History:
    """A cursor loop in the ledger and in the projections."""
    cursor_loop = builders.a_cursor_loop()
    async with open_database(database, must_be_durable=False) as opened:
        await migrate.apply_migrations(opened)
        stores = postgres_stores(opened)
        held = await stores.shards.claim_shards(owner="p", lease_s=600, shards_max=1, shard_count=1)
        fence = ShardFence(shard=held[0].shard, owner="p", epoch=held[0].epoch)
        await stores.ledger.append(Append(fence=fence, streams=[cursor_loop.stream()], messages=[]))
        folded = state.build_empty_state(cursor_loop.execution_id, TENANT, ORGANIZATION)
        folded = fold.fold_history(folded, cursor_loop.envelopes)
        await stores.projections.apply_rows(
            shard=0,
            rows=rows.build_changed_rows(folded, state.take_changes(folded)),
            positions={cursor_loop.execution_id: (0, folded.version)},
        )
    return cursor_loop


@pytest.fixture
async def worker(database: str, story: History) -> AsyncIterator[Bench]:
    del story
    async with bench() as found:
        role = await make_reader(database, TENANT)
        await found.put_credential("ledger", {"dsn": f"{database}?role={role}"})
        yield found


async def asked(worker: Bench, sql: str) -> Any:
    facts = await worker.run(
        command_of(f'\n  - step: s\n    tool: {{kind: postgres, auth: ledger, query: "{sql}"}}\n')
    )
    assert isinstance(facts[-1], CommandCompleted), facts[-1]
    return (await worker.value(facts[-1].result))["rows"]


@pytest.mark.parametrize("view", PROMISED)
async def test_a_playbook_reads_what_the_language_promises(
    worker: Bench, story: History, view: str
) -> None:
    columns = PROMISED[view]
    found = await asked(worker, f"select {columns} from noetl.{view}")  # noqa: S608 - our own text
    assert found, view
    assert {item["execution_id"] for item in found} == {int(story.execution_id)}
    assert list(found[0]) == columns.replace(" ", "").split(",")


async def test_the_frames_of_a_stage_are_counted_by_their_status(worker: Bench) -> None:
    (stage,) = await asked(worker, "select step_name, kind, status, frames from noetl.stage")
    assert (stage["kind"], stage["status"]) == ("loop", "COMPLETED")
    counted = await asked(worker, "select status, count(*) as n from noetl.frame group by status")
    assert {item["status"] for item in counted} <= {"COMPLETED", "FAILED"}
    assert sum(item["n"] for item in counted) == stage["frames"]


async def test_the_reader_writes_nothing(worker: Bench) -> None:
    facts = await worker.run(
        command_of(
            "\n  - step: s\n    tool: {kind: postgres, auth: ledger,"
            " query: delete from noetl.event}\n"
        )
    )
    assert facts[-1].error.pg_code == "42501"  # type: ignore[union-attr]  # a failure
