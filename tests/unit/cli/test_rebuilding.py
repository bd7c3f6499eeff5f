"""Read models are rebuilt while projectors and readers go on."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import pytest
from tests.support.builders import History, a_batch, a_cursor_loop, nested
from tests.support.bus import memory_bus
from tests.support.projecting import SHARD_COUNT, ProjectorHarness, run_dry
from tests.support.storage import memory_stores

from noetl_cli.commands.history.projection import ProjectionRebuild
from noetl_cli.errors import CliError
from noetl_contracts import ids
from noetl_contracts.ids import ExecutionId


@pytest.fixture
async def harness() -> AsyncIterator[ProjectorHarness]:
    async with memory_bus() as bus:
        await bus.streams.ensure_streams()
        yield ProjectorHarness(memory_stores(), bus)


def rebuilding(harness: ProjectorHarness, models: Any = None) -> ProjectionRebuild:
    return ProjectionRebuild(
        ledger=harness.stores.ledger_reader,
        models=models or harness.stores.projections,
        past=harness.stores.past,
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


async def projected(harness: ProjectorHarness, *, until: int | None = None) -> History:
    history = a_cursor_loop()
    await harness.append(history, until=until)
    await harness.send([a_batch(history.envelopes[:until])])
    await run_dry(harness.projector())
    return history


async def test_rows_that_are_right_stay_as_they_are(harness: ProjectorHarness) -> None:
    history = await projected(harness)
    done = await rebuilding(harness).rebuild_execution(history.execution_id)
    assert (done.version, done.differences) == (len(history.envelopes), 0)
    assert await harness.list_differences(history.envelopes) == []


async def test_rows_that_are_wrong_missing_or_too_many_are_put_right(
    harness: ProjectorHarness,
) -> None:
    history = await projected(harness)
    shard = ids.find_shard(history.execution_id, SHARD_COUNT)
    wrong = await harness.stores.projections.list_rows("frame", history.execution_id)
    del wrong[1]
    wrong[0]["row_count"] = 99
    wrong.append({**wrong[0], "frame_id": "1"})
    await harness.stores.rebuilds.replace_rows(
        shard=shard,
        execution_id=history.execution_id,
        rows={"frame": wrong},
        version=len(history.envelopes),
    )
    done = await rebuilding(harness).rebuild_execution(history.execution_id)
    assert done.differences
    assert await harness.list_differences(history.envelopes) == []


async def test_a_parent_stage_that_was_not_filled_is_put_right(harness: ProjectorHarness) -> None:
    history = nested(a_cursor_loop())
    await harness.append(history)
    await harness.send([a_batch(history.envelopes)])
    await run_dry(harness.projector())
    (stage,) = await harness.stores.projections.list_rows("stage", history.execution_id)
    assert stage["parent_stage_id"] == "77"
    # As a release left it that did not fill the column; everything else stands already.
    await harness.stores.rebuilds.replace_rows(
        shard=ids.find_shard(history.execution_id, SHARD_COUNT),
        execution_id=history.execution_id,
        rows={"stage": [{**stage, "parent_stage_id": None}]},
        version=len(history.envelopes),
    )
    done = await rebuilding(harness).rebuild_execution(history.execution_id)
    assert done.differences
    assert await harness.stores.projections.list_rows("stage", history.execution_id) == [stage]


async def test_a_projection_that_is_lost_or_late_is_brought_up(harness: ProjectorHarness) -> None:
    history = await projected(harness, until=9)
    await harness.append(history, after=9)
    late = await rebuilding(harness).rebuild_execution(history.execution_id)
    assert (late.version, late.differences) == (len(history.envelopes), None)
    await harness.stores.projections.clear_execution(history.execution_id)
    await rebuilding(harness).rebuild_execution(history.execution_id)
    assert await harness.list_differences(history.envelopes) == []


async def test_a_projector_that_moves_on_meanwhile_is_not_undone(harness: ProjectorHarness) -> None:
    history = await projected(harness, until=6)
    projector = harness.projector()

    def move(until: int) -> Any:
        async def go_on() -> None:
            after = await harness.find_position(history)
            await harness.append(history, after=after, until=until)
            await harness.send([a_batch(history.envelopes[after:until])])
            await run_dry(projector)

        return go_on

    racing = Racing(harness.stores.projections, [move(10), move(15)])
    done = await rebuilding(harness, racing).rebuild_execution(history.execution_id)
    assert done.version == 15
    assert await harness.list_differences(history.envelopes[:15]) == []
    # The projector goes on from what was rebuilt under it.
    await move(len(history.envelopes))()
    assert await harness.list_differences(history.envelopes) == []


async def test_a_projector_goes_on_behind_a_rebuild_that_is_ahead_of_it(
    harness: ProjectorHarness,
) -> None:
    history = await projected(harness, until=6)
    projector = harness.projector()
    await harness.append(history, after=6)
    await rebuilding(harness).rebuild_execution(history.execution_id)
    await harness.send(history.batches(size=3))
    await run_dry(projector)
    assert await harness.list_differences(history.envelopes) == []


async def test_readers_never_see_an_execution_half_rebuilt(harness: ProjectorHarness) -> None:
    history = await projected(harness)
    seen: list[int] = []

    class Watched(Racing):
        async def replace_rows(self, **values: Any) -> int:
            rows: Mapping[str, Sequence[Any]] = values["rows"]
            before = await self._inner.list_rows("frame", history.execution_id)
            version = await super().replace_rows(**values)
            after = await self._inner.list_rows("frame", history.execution_id)
            seen.extend((len(before), len(after), len(rows["frame"])))
            return version

    await rebuilding(harness, Watched(harness.stores.projections, [])).rebuild_execution(
        history.execution_id
    )
    assert len(set(seen)) == 1


async def test_what_is_not_there_is_said(harness: ProjectorHarness) -> None:
    with pytest.raises(CliError, match="has no execution 12"):
        await rebuilding(harness).rebuild_execution(ExecutionId("12"))


async def test_rows_of_a_future_that_a_backup_does_not_have_are_dropped(
    harness: ProjectorHarness,
) -> None:
    history = await projected(harness, until=6)
    execution_id = ExecutionId("77")
    shard = ids.find_shard(history.execution_id, SHARD_COUNT)
    await harness.stores.projections.apply_rows(
        shard=shard, rows={}, positions={history.execution_id: (6, 9), execution_id: (0, 3)}
    )
    done = await rebuilding(harness).rebuild_execution(history.execution_id)
    assert done.version == 6
    assert await harness.list_differences(history.envelopes[:6]) == []
    assert await rebuilding(harness).drop_orphans() == [execution_id]
    assert await harness.stores.rebuilds.list_executions_ahead(executions_max=9) == []
    assert await rebuilding(harness).drop_orphans() == []
