"""What replay and audit read, and the rebuilding of read models, on every adapter."""

from datetime import timedelta
from itertools import pairwise

from tests.support.storage import (
    NOON,
    ORGANIZATION,
    TENANT,
    Stores,
    a_fence,
    a_run,
    a_stream,
    an_append,
    an_execution,
)

from noetl_contracts import codec
from noetl_contracts.events.execution_events import CustomEvent
from noetl_contracts.events.step_events import CallDone, StepExit
from noetl_contracts.ids import CommandId, EventId, ExecutionId, OrganizationId, RunId
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.records import Snapshot
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.status import RunStatus
from noetl_replay.rows import SURFACES, build_execution_row
from noetl_replay.state import build_empty_state
from noetl_storage.ports.payload_ports import Owner

PLACE = {"tenant_id": TENANT, "organization_id": ORGANIZATION}
# jsonb would not give these back as they were sealed.
AWKWARD = {"z": [1, 1.0, 1e20, -0.0, None, "nul \x00 end"], "é": {}}


async def a_history(stores: Stores, *, events: int = 5) -> ExecutionId:
    execution = an_execution()
    run = RunId("11")
    last = [
        CallDone(
            step="fetch",
            run_id=run,
            command_id=CommandId("7"),
            result=ResultEnvelope(status="ok", context={"data": AWKWARD}),
        ),
        CustomEvent(name="loaded", step="fetch", run_id=run, status="COMPLETED"),
        StepExit(step="fetch", run_id=run, status=RunStatus.COMPLETED, patch=AWKWARD),
    ]
    history = [*(a_run(activation=number + 1) for number in range(events - len(last))), *last]
    await stores.ledger.append(an_append(await a_fence(stores), a_stream(execution, history)))
    return execution


async def test_histories_are_shown_as_they_were_sealed(stores: Stores) -> None:
    execution = await a_history(stores)
    stored_events = await stores.audit.read_stored_events(execution)
    before = codec.CHECKSUM_NONE
    for item in stored_events:
        assert stored_event.is_stored_event_sealed(item, before), item
        assert item.altered == ()
        before = item.envelope_checksum
    assert [
        stored_event.read_envelope(item) for item in stored_events
    ] == await stores.ledger_reader.read_events(execution)
    page = await stores.audit.read_stored_events(execution, after_version=1, events_max=2)
    assert [item.stream_version for item in page] == [2, 3]
    assert await stores.audit.read_stored_events(an_execution()) == []


async def test_cuts_fall_where_time_and_events_say(stores: Stores) -> None:
    execution = await a_history(stores)
    first = (await stores.audit.read_stored_events(execution))[0]
    at = stores.audit.find_version_at
    assert await at(execution, NOON) == 0
    assert await at(execution, first.event_time) == 1
    assert await at(execution, NOON + timedelta(milliseconds=3, microseconds=5)) == 3
    assert await at(execution, NOON + timedelta(days=1)) == 5
    of = stores.audit.find_version_of
    assert await of(execution, EventId(first.event_id)) == 1
    assert await of(execution, EventId("1")) is None


async def test_spans_of_a_run_hold_all_of_its_events(stores: Stores) -> None:
    execution = await a_history(stores)
    buckets = await stores.audit.list_buckets(execution, buckets=4)
    assert [(bucket.number, bucket.events) for bucket in buckets] == [
        (0, 1),
        (1, 1),
        (2, 1),
        (3, 2),
    ]
    assert (buckets[-1].first_version, buckets[-1].last_version) == (4, 5)
    assert buckets[0].began_at == NOON + timedelta(milliseconds=1)
    assert await stores.audit.list_buckets(an_execution(), buckets=4) == []
    (only,) = await stores.audit.list_buckets(await a_history(stores), buckets=1)
    assert only.events == 5


async def test_histories_of_a_tenant_are_listed_page_by_page(stores: Stores) -> None:
    executions = sorted([await a_history(stores) for _ in range(3)], key=int)
    heads = await stores.audit.list_histories(**PLACE, heads_max=2)
    assert [head.execution_id for head in heads] == executions[:2]
    rest = await stores.audit.list_histories(**PLACE, after=executions[1], heads_max=2)
    assert [head.execution_id for head in rest] == executions[2:]
    assert rest == [await stores.ledger_reader.find_head(executions[2])]
    elsewhere = {"tenant_id": TENANT, "organization_id": OrganizationId("east")}
    assert await stores.audit.list_histories(**elsewhere, heads_max=2) == []


async def test_a_history_says_whose_it_is(stores: Stores) -> None:
    execution = await a_history(stores)
    assert await stores.audit.find_owner(execution) == Owner(**PLACE)
    assert await stores.audit.find_owner(an_execution()) is None


def a_snapshot(execution: ExecutionId, version: int) -> Snapshot:
    return Snapshot(
        execution_id=execution,
        version=version,
        fold_version=1,
        upcaster_digest="u",
        checksum=f"c{version}",
        state=b"\x00" * version,
        event_id=EventId(str(version)),
        payload_digest="p",
        encryption={"tenant_id": TENANT, "key_ids": ["k"]},
    )


async def test_snapshots_of_the_past_are_spread(stores: Stores) -> None:
    execution = an_execution()
    assert await stores.past.find_snapshot_before(execution, 100) is None
    for version in (10, 12, 19, 31):
        await stores.past.keep_snapshot(a_snapshot(execution, version), spacing_versions=8)
    at = {
        version: await stores.past.find_snapshot_before(execution, version)
        for version in (9, 18, 30, 31)
    }
    assert at == {
        9: None,
        18: a_snapshot(execution, 10),
        30: a_snapshot(execution, 19),
        31: a_snapshot(execution, 31),
    }
    await stores.past.forget_snapshots(execution)
    assert await stores.past.find_snapshot_before(execution, 100) is None


async def test_a_snapshot_keeps_what_it_says_about_itself(stores: Stores) -> None:
    execution = an_execution()
    await stores.snapshots.put_snapshot(a_snapshot(execution, 3))
    assert await stores.snapshots.find_snapshot(execution) == a_snapshot(execution, 3)


def a_loop_row(execution: ExecutionId, run: str, done: int) -> dict[str, object]:
    return {
        "execution_id": execution,
        "run_id": run,
        "tenant_id": TENANT,
        "organization_id": ORGANIZATION,
        "step_name": "drain",
        "mode": "cursor",
        "status": "RUNNING",
        "stage_id": None,
        "total": 9,
        "done": done,
        "failed": 0,
        "in_flight": 0,
        "is_finished": False,
        "last_event_id": None,
        "started_at": NOON,
    }


async def test_rows_are_replaced_as_a_whole(stores: Stores) -> None:
    execution, other = an_execution(), an_execution()
    rows = {"loop": [a_loop_row(execution, "1", 1), a_loop_row(execution, "2", 1)]}
    await stores.projections.apply_rows(shard=0, rows=rows, positions={execution: (0, 4)})
    theirs = {"loop": [a_loop_row(other, "1", 7)]}
    await stores.projections.apply_rows(shard=0, rows=theirs, positions={other: (0, 2)})
    again = {"loop": [a_loop_row(execution, "2", 5)]}
    new = await stores.rebuilds.replace_rows(shard=1, execution_id=execution, rows=again, version=6)
    assert new == 6
    assert [row["done"] for row in await stores.projections.list_rows("loop", execution)] == [5]
    assert [row["done"] for row in await stores.projections.list_rows("loop", other)] == [7]
    assert await stores.projections.list_positions([execution]) == {execution: 6}


async def test_rows_that_are_further_are_left_alone(stores: Stores) -> None:
    execution = an_execution()
    rows = {"loop": [a_loop_row(execution, "1", 8)]}
    await stores.projections.apply_rows(shard=0, rows=rows, positions={execution: (0, 9)})
    older = {"loop": [a_loop_row(execution, "1", 1)]}
    found = await stores.rebuilds.replace_rows(
        shard=0, execution_id=execution, rows=older, version=4
    )
    assert found == 9
    assert [row["done"] for row in await stores.projections.list_rows("loop", execution)] == [8]


async def test_a_projector_that_believed_an_older_position_is_left_out(stores: Stores) -> None:
    execution = an_execution()
    rows = {"loop": [a_loop_row(execution, "1", 1)]}
    await stores.rebuilds.replace_rows(shard=0, execution_id=execution, rows=rows, version=4)
    late = {"loop": [a_loop_row(execution, "1", 2)]}
    moved = {execution: (3, 5)}
    assert await stores.projections.apply_rows(shard=0, rows=late, positions=moved) == [execution]
    moved = {execution: (4, 5)}
    assert await stores.projections.apply_rows(shard=0, rows=late, positions=moved) == []


async def test_projections_ahead_of_the_ledger_are_found(stores: Stores) -> None:
    execution = await a_history(stores)
    gone = an_execution()
    await stores.projections.apply_rows(shard=0, rows={}, positions={execution: (0, 5)})
    assert await stores.rebuilds.list_executions_ahead(executions_max=9) == []
    await stores.projections.apply_rows(
        shard=0, rows={}, positions={execution: (5, 6), gone: (0, 1)}
    )
    ahead = await stores.rebuilds.list_executions_ahead(executions_max=9)
    assert ahead == sorted([execution, gone], key=int)


async def test_the_past_of_a_long_history_is_thinned_out(stores: Stores) -> None:
    execution = an_execution()
    for version in range(1, 200):
        await stores.past.keep_snapshot(
            a_snapshot(execution, version), spacing_versions=version // 8
        )
    kept = set()
    at = 200
    while (snapshot := await stores.past.find_snapshot_before(execution, at)) is not None:
        kept.add(snapshot.version)
        at = snapshot.version - 1
    gaps = [later - earlier for earlier, later in pairwise([*sorted(kept), 200])]
    assert 8 <= len(kept) <= 17
    assert max(gaps) <= 48


async def test_the_past_of_what_ended_long_ago_is_forgotten(stores: Stores) -> None:
    ended, running = await a_history(stores), await a_history(stores)
    for execution in (ended, running):
        await stores.past.keep_snapshot(a_snapshot(execution, 3), spacing_versions=0)
        row = build_execution_row(build_empty_state(execution, TENANT, ORGANIZATION))
        rows = {surface: [] for surface in SURFACES} | {
            "execution": [row | {"ended_at": NOON if execution == ended else None}]
        }
        await stores.rebuilds.replace_rows(shard=0, execution_id=execution, rows=rows, version=1)
    assert await stores.past.prune_snapshots(ended_s=1e10, executions_max=9) == 0
    assert await stores.past.prune_snapshots(ended_s=1.0, executions_max=9) == 1
    assert await stores.past.prune_snapshots(ended_s=1.0, executions_max=9) == 0
    assert await stores.past.find_snapshot_before(ended, 9) is None
    assert await stores.past.find_snapshot_before(running, 9) is not None
