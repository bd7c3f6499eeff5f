"""Lineage's events and rows on every adapter."""

from tests.support.lineage_rows import list_lineage_rows
from tests.support.storage import (
    NOON,
    Stores,
    a_fence,
    a_run,
    a_stream,
    an_append,
    an_execution,
)

from noetl_contracts.events.execution_events import PlaybookCompleted
from noetl_contracts.events.step_events import CallDone, StepExit
from noetl_contracts.ids import CommandId, ExecutionId, RunId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.status import RunStatus
from noetl_storage.ports.history_ports import LineageBehind, LineageRow

ALL = {"shard": 0, "shard_count": 1}


async def a_history(stores: Stores) -> ExecutionId:
    execution, run = an_execution(), RunId("11")

    def done(item: int | None) -> CallDone:
        return CallDone(
            step="fetch",
            run_id=run,
            command_id=CommandId("7"),
            result=ResultEnvelope(status="ok", context={"data": item}),
            item_index=item,
        )

    events = [
        a_run(),
        done(0),
        done(1),
        done(None),
        StepExit(step="fetch", run_id=run, status=RunStatus.COMPLETED),
        PlaybookCompleted(step="fetch"),
    ]
    stream = a_stream(execution, events)
    await stores.ledger.append(an_append(await a_fence(stores), stream))
    return execution


def a_row(version: int, body: str = '{"a": 1}', ordinal: int = 0) -> LineageRow:
    return LineageRow(
        version=version,
        ordinal=ordinal,
        event_type="START",
        event_time=NOON,
        run_id="4fc3cdd4-79a7-5d61-9c43-1b5c3a1b1f2e",
        job="demo/hello",
        body=body,
    )


async def only_behind(stores: Stores, lineage_version: int = 1) -> LineageBehind | None:
    lineage = await stores.lineage.list_lineage_behind(
        **ALL, lineage_version=lineage_version, executions_max=9
    )
    return lineage[0] if lineage else None


async def keep(
    stores: Stores, behind: LineageBehind, rows: list[LineageRow], until: int, version: int = 1
) -> bool:
    return await stores.lineage.keep_rows(
        behind, rows, until=until, state=b"state", lineage_version=version
    )


async def test_only_events_of_steps_are_read(stores: Stores) -> None:
    execution = await a_history(stores)
    steps = await stores.steps.read_steps(execution, after_version=0, until_version=99)
    assert [step.stream_version for step in steps] == [1, 4, 5, 6]
    part = await stores.steps.read_steps(execution, after_version=1, until_version=5)
    assert [item.stream_version for item in part] == [4, 5]


async def test_a_position_moves_only_from_where_it_was_believed(stores: Stores) -> None:
    await a_history(stores)
    behind = await only_behind(stores)
    assert behind is not None
    assert (behind.kept_version, behind.head, behind.state) == (0, 6, None)
    assert await keep(stores, behind, [a_row(1), a_row(1, ordinal=1)], until=4)
    assert not await keep(stores, behind, [a_row(2)], until=4)
    further = await only_behind(stores)
    assert further is not None
    assert (further.kept_version, further.state) == (4, b"state")
    assert await keep(stores, further, [a_row(6)], until=6)
    assert await only_behind(stores) is None
    rows = await list_lineage_rows(stores.lineage, behind.execution_id)
    assert [(row.version, row.ordinal) for row in rows] == [(1, 0), (1, 1), (6, 0)]
    assert rows[0] == a_row(1)


async def test_what_was_settled_is_not_sent_again(stores: Stores) -> None:
    await a_history(stores)
    behind = await only_behind(stores)
    assert behind is not None
    await keep(stores, behind, [a_row(1), a_row(5), a_row(6)], until=6)
    waiting = await stores.lineage.list_undelivered_rows(**ALL, rows_max=9)
    assert [item.version for item in waiting] == [1, 5, 6]
    await stores.lineage.settle_row(waiting[0])
    await stores.lineage.settle_row(waiting[1], refusal="422")
    left = await stores.lineage.list_undelivered_rows(**ALL, rows_max=9)
    assert [(item.version, item.body) for item in left] == [(6, '{"a": 1}')]


async def test_what_is_told_again_is_sent_again_where_it_says_something_else(
    stores: Stores,
) -> None:
    execution = await a_history(stores)
    behind = await only_behind(stores)
    assert behind is not None
    await keep(stores, behind, [a_row(1), a_row(4), a_row(5), a_row(6)], until=6)
    for undelivered_row in await stores.lineage.list_undelivered_rows(**ALL, rows_max=9):
        await stores.lineage.settle_row(undelivered_row)
    assert await stores.lineage.forget_lineage(execution)
    assert not await stores.lineage.forget_lineage(an_execution())
    again = await only_behind(stores)
    assert again is not None
    assert (again.kept_version, again.state) == (0, None)
    assert await keep(stores, again, [a_row(1), a_row(4, '{"b": 2}')], until=5)
    further = await only_behind(stores)
    assert further is not None
    assert await keep(stores, further, [a_row(6)], until=6)
    rows = await list_lineage_rows(stores.lineage, execution)
    assert [(row.version, row.body) for row in rows] == [
        (1, '{"a": 1}'),
        (4, '{"b": 2}'),
        (6, '{"a": 1}'),
    ]
    waiting = await stores.lineage.list_undelivered_rows(**ALL, rows_max=9)
    assert [item.version for item in waiting] == [4]


async def test_another_manner_of_telling_begins_anew(stores: Stores) -> None:
    await a_history(stores)
    behind = await only_behind(stores)
    assert behind is not None
    await keep(stores, behind, [a_row(1)], until=6)
    newer = await only_behind(stores, lineage_version=2)
    assert newer is not None
    assert newer.kept_version == 0
    assert await keep(stores, newer, [a_row(6)], until=6, version=2)
    rows = await list_lineage_rows(stores.lineage, behind.execution_id)
    assert [row.version for row in rows] == [6]
