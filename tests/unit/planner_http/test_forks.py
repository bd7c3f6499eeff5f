"""Executions that go on from a past position of another, over HTTP."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld
from tests.support.storage import an_execution
from tests.unit.planner_http.test_reruns import asked, failed, failed_history

from noetl_contracts.ids import ExecutionId
from noetl_replay import snapshot
from noetl_replay.fold import fold_history
from noetl_replay.state import build_empty_state

Api = AsyncTestClient[Litestar]


async def fork(api: Api, execution_id: ExecutionId, **body: Any) -> Any:
    answer = await api.post(f"/api/executions/{execution_id}/fork", json=body)
    return answer.json() | {"http": answer.status_code}


async def test_the_step_that_was_live_goes_on_with_what_was_known(
    api: Api, world: ApiWorld
) -> None:
    known = await failed(api, world)
    history = list(world.store.history_by_execution[known])
    # `fetch` is live for the first time: nothing of what followed is known.
    answer = await fork(api, known, as_of_position=5, workload={"m": 1})
    assert answer["http"] == 202, answer
    fact = asked(world)
    rerun = fact.rerun
    assert rerun is not None
    assert (rerun.source.execution_id, rerun.source.version) == (known, 5)
    assert (rerun.source.step, rerun.came_from) == ("fetch", "split")
    assert rerun.inherited is not None
    assert rerun.inherited.workload == {"n": 7}
    assert fact.workload == {"m": 1}
    assert rerun.inherited.ctx == {"seen": 1}
    assert [step.step for step in rerun.inherited.steps] == ["split"]
    assert world.store.history_by_execution[known] == history


async def test_an_event_names_a_position_too(api: Api, world: ApiWorld) -> None:
    known = await failed(api, world)
    event = world.store.history_by_execution[known][4]
    assert (await fork(api, known, as_of_event_id=event.event_id))["http"] == 202
    rerun = asked(world).rerun
    assert rerun is not None
    assert rerun.source.version == 5


async def test_a_step_may_be_named_where_nothing_or_more_was_live(
    api: Api, world: ApiWorld
) -> None:
    known = await failed(api, world)
    ended = await fork(api, known)
    assert (ended["http"], ended["code"]) == (422, "nothing_live")
    several = await fork(api, known, as_of_position=9)
    assert (several["http"], several["code"]) == (422, "several_live")
    assert "fetch, side" in several["detail"]
    unknown = await fork(api, known, from_step="fetched")
    assert (unknown["http"], "fetch" in unknown["hint"]) == (422, True)
    assert (await fork(api, known, from_step="merge"))["http"] == 202
    rerun = asked(world).rerun
    assert rerun is not None
    assert (rerun.source.step, rerun.source.version) == ("merge", len(failed_history()))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"as_of_position": 99}, 400),
        ({"as_of_position": 1, "as_of_event_id": "1"}, 400),
        ({"as_of_event_id": "7"}, 404),
        ({"position": 1}, 400),
    ],
)
async def test_positions_that_are_not_there_are_refused(
    api: Api, world: ApiWorld, body: dict[str, Any], status: int
) -> None:
    known = await failed(api, world)
    assert (await fork(api, known, **body))["http"] == status
    assert (await fork(api, an_execution()))["http"] == 404
    assert not world.store.message_by_id


async def test_a_snapshot_of_the_past_gives_the_same_fork(api: Api, world: ApiWorld) -> None:
    known = await failed(api, world)
    first = await fork(api, known, as_of_position=5)
    assert first["http"] == 202
    before = asked(world).rerun
    history = world.store.history_by_execution[known]
    begun = build_empty_state(known, history[0].tenant_id, history[0].organization_id)
    await world.services().history.past_snapshots.keep_snapshot(
        snapshot.build_snapshot(fold_history(begun, history[:4])), spacing_versions=0
    )
    world.store.message_by_id.clear()
    await fork(api, known, as_of_position=5)
    assert asked(world).rerun == before
