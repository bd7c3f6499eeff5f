"""Read models are rebuilt while projectors and readers go on."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from tests.support.builders import History, a_batch, a_cursor_loop, nested
from tests.support.bus import memory_bus
from tests.support.projecting import SHARD_COUNT, Desk, run_dry
from tests.support.storage import memory_stores

from noetl_cli.commands.history.projection import ProjectionRebuild
from noetl_cli.errors import CliError
from noetl_contracts import ids
from noetl_contracts.ids import ExecutionId


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with memory_bus() as bus:
        await bus.streams.ensure_streams()
        yield Desk(memory_stores(), bus)


def rebuilding(desk: Desk, models: Any = None) -> ProjectionRebuild:
    return ProjectionRebuild(
        ledger=desk.stores.ledger_reader,
        models=models or desk.stores.projections,
        past=desk.stores.past,
        shard_count=SHARD_COUNT,
    )


class Racing:
    """Read models whose projector moves on right before each of the first replacements."""

    def __init__(self, inner: Any, moves: list[Any]) -> None:
        self._inner, self._moves = inner, moves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def replace_rows(self, **values: Any) -> int:
        if self._moves:
            await self._moves.pop(0)()
        version: int = await self._inner.replace_rows(**values)
        return version


async def projected(desk: Desk, *, until: int | None = None) -> History:
    history = a_cursor_loop()
    await desk.append(history, until=until)
    await desk.send([a_batch(history.envelopes[:until])])
    await run_dry(desk.projector())
    return history


async def test_rows_that_are_right_stay_as_they_are(desk: Desk) -> None:
    history = await projected(desk)
    done = await rebuilding(desk).rebuild_execution(history.execution_id)
    assert (done.version, done.differences) == (len(history.envelopes), 0)
    assert await desk.list_differences(history.envelopes) == []


async def test_rows_that_are_wrong_missing_or_too_many_are_put_right(desk: Desk) -> None:
    history = await projected(desk)
    shard = ids.find_shard(history.execution_id, SHARD_COUNT)
    wrong = await desk.stores.projections.list_rows("frame", history.execution_id)
    del wrong[1]
    wrong[0]["row_count"] = 99
    wrong.append({**wrong[0], "frame_id": "1"})
    await desk.stores.rebuilds.replace_rows(
        shard=shard,
        execution_id=history.execution_id,
        rows={"frame": wrong},
        version=len(history.envelopes),
    )
    done = await rebuilding(desk).rebuild_execution(history.execution_id)
    assert done.differences
    assert await desk.list_differences(history.envelopes) == []


async def test_a_parent_stage_that_was_not_filled_is_put_right(desk: Desk) -> None:
    history = nested(a_cursor_loop())
    await desk.append(history)
    await desk.send([a_batch(history.envelopes)])
    await run_dry(desk.projector())
    (stage,) = await desk.stores.projections.list_rows("stage", history.execution_id)
    assert stage["parent_stage_id"] == "77"
    # As a release left it that did not fill the column; everything else stands already.
    await desk.stores.rebuilds.replace_rows(
        shard=ids.find_shard(history.execution_id, SHARD_COUNT),
        execution_id=history.execution_id,
        rows={"stage": [{**stage, "parent_stage_id": None}]},
        version=len(history.envelopes),
    )
    done = await rebuilding(desk).rebuild_execution(history.execution_id)
    assert done.differences
    assert await desk.stores.projections.list_rows("stage", history.execution_id) == [stage]


async def test_a_projection_that_is_lost_or_late_is_brought_up(desk: Desk) -> None:
    history = await projected(desk, until=9)
    await desk.append(history, after=9)
    late = await rebuilding(desk).rebuild_execution(history.execution_id)
    assert (late.version, late.differences) == (len(history.envelopes), None)
    await desk.stores.projections.clear_execution(history.execution_id)
    await rebuilding(desk).rebuild_execution(history.execution_id)
    assert await desk.list_differences(history.envelopes) == []


async def test_a_projector_that_moves_on_meanwhile_is_not_undone(desk: Desk) -> None:
    history = await projected(desk, until=6)
    projector = desk.projector()

    def move(until: int) -> Any:
        async def go_on() -> None:
            after = await desk.find_position(history)
            await desk.append(history, after=after, until=until)
            await desk.send([a_batch(history.envelopes[after:until])])
            await run_dry(projector)

        return go_on

    racing = Racing(desk.stores.projections, [move(10), move(15)])
    done = await rebuilding(desk, racing).rebuild_execution(history.execution_id)
    assert done.version == 15
    assert await desk.list_differences(history.envelopes[:15]) == []
    # The projector goes on from what was rebuilt under it.
    await move(len(history.envelopes))()
    assert await desk.list_differences(history.envelopes) == []


async def test_a_projector_goes_on_behind_a_rebuild_that_is_ahead_of_it(desk: Desk) -> None:
    history = await projected(desk, until=6)
    projector = desk.projector()
    await desk.append(history, after=6)
    await rebuilding(desk).rebuild_execution(history.execution_id)
    await desk.send(history.batches(size=3))
    await run_dry(projector)
    assert await desk.list_differences(history.envelopes) == []


async def test_readers_never_see_an_execution_half_rebuilt(desk: Desk) -> None:
    history = await projected(desk)
    seen: list[int] = []

    class Watched(Racing):
        async def replace_rows(self, **values: Any) -> int:
            rows: Mapping[str, Sequence[Any]] = values["rows"]
            before = await self._inner.list_rows("frame", history.execution_id)
            version = await super().replace_rows(**values)
            after = await self._inner.list_rows("frame", history.execution_id)
            seen.extend((len(before), len(after), len(rows["frame"])))
            return version

    await rebuilding(desk, Watched(desk.stores.projections, [])).rebuild_execution(
        history.execution_id
    )
    assert len(set(seen)) == 1


async def test_what_is_not_there_is_said(desk: Desk) -> None:
    with pytest.raises(CliError, match="has no execution 12"):
        await rebuilding(desk).rebuild_execution(ExecutionId("12"))


async def test_rows_of_a_future_that_a_backup_does_not_have_are_dropped(desk: Desk) -> None:
    history = await projected(desk, until=6)
    gone = ExecutionId("77")
    shard = ids.find_shard(history.execution_id, SHARD_COUNT)
    await desk.stores.projections.apply_rows(
        shard=shard, rows={}, positions={history.execution_id: (6, 9), gone: (0, 3)}
    )
    done = await rebuilding(desk).rebuild_execution(history.execution_id)
    assert done.version == 6
    assert await desk.list_differences(history.envelopes[:6]) == []
    assert await rebuilding(desk).drop_orphans() == [gone]
    assert await desk.stores.rebuilds.list_executions_ahead(executions_max=9) == []
    assert await rebuilding(desk).drop_orphans() == []
