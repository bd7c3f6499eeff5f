"""Replays of long histories: folded in slices, held as bytes, and the same as if folded at once."""

from datetime import datetime
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support import proving
from tests.support.api import ApiWorld, beginning, ending
from tests.support.builders import STORIES, History, a_cursor_loop
from tests.support.storage import ORGANIZATION, TENANT, an_execution

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_planner.api.app import create_app
from noetl_planner.api.history import history_replay
from noetl_planner.api.lookup import fold_slices, live_rows
from noetl_planner.moments import replay_folds
from noetl_planner.moments.replay_folds import ReplayFold, ReplayFolds, build_fold_report
from noetl_replay import rows
from noetl_replay.audit.evidence import EvidenceScope
from noetl_replay.history_replay import HistoryReplay, build_replay_report
from noetl_replay.state import build_empty_state

Api = AsyncTestClient[Litestar]
PLACE = {"tenant_id": TENANT, "organization_id": ORGANIZATION}


async def a_loop(world: ApiWorld) -> ExecutionId:
    execution_id = an_execution()
    await world.append(execution_id, [envelope.event for envelope in a_cursor_loop().envelopes])
    await world.project(execution_id)
    return execution_id


async def ask_until_folded(
    api: Api, path: str, execution_id: str, **params: Any
) -> tuple[Any, list[int]]:
    """Ask as a client does; return the answer, and how far each answer before it had come."""
    folded = []
    asked = {"execution_id": execution_id, **PLACE, **params}
    while True:
        answer = await api.get(f"/api/replay/{path}", params=asked)
        if answer.status_code != 202:
            return answer.json() | {"http": answer.status_code}, folded
        progress = answer.json()
        assert progress["execution_id"] == execution_id
        folded.append(progress["folded"])
        assert progress["folded"] < progress["wanted"]


@pytest.mark.parametrize("projection", ["all", "execution", "frame", "business_object"])
async def test_a_far_state_is_folded_in_slices_and_is_the_same(
    api: Api, world: ApiWorld, monkeypatch: pytest.MonkeyPatch, projection: str
) -> None:
    execution_id = await a_loop(world)
    whole, none = await ask_until_folded(api, "state", execution_id, projection=projection)
    assert none == []
    monkeypatch.setattr(fold_slices, "SLICE_EVENTS", 5)
    async with AsyncTestClient(create_app(world.services())) as other:
        # Another process, which has folded nothing yet.
        sliced, folded = await ask_until_folded(other, "state", execution_id, projection=projection)
    assert folded == list(range(5, whole["version"], 5))
    assert sliced == whole
    assert sliced["events_folded"] == sliced["version"]


@pytest.mark.parametrize("places", [(3, 14), (14, 3), (9, 9), (1, 15), (4, None)])
async def test_a_diff_in_slices_is_the_diff_of_two_states(
    api: Api, world: ApiWorld, monkeypatch: pytest.MonkeyPatch, places: tuple[int, int | None]
) -> None:
    execution_id = await a_loop(world)
    before, after = places
    asked = {"before": before} | ({} if after is None else {"after": after})
    whole, _ = await ask_until_folded(api, "diff", execution_id, **asked)
    monkeypatch.setattr(fold_slices, "SLICE_EVENTS", 2)
    async with AsyncTestClient(create_app(world.services())) as other:
        # Another process, which has folded nothing yet.
        sliced, folded = await ask_until_folded(other, "diff", execution_id, **asked)
    assert sliced == whole
    assert len(folded) == (max(before, after or 0) - 1) // 2
    assert (whole["before"], whole["is_live"]) == (before, after is None)
    assert whole["is_equal"] is (whole["changes"] == []) is (before == after)


async def test_one_diff_does_not_go_on_from_another(api: Api, world: ApiWorld) -> None:
    execution_id = await a_loop(world)
    answers = {}
    for before, after in [(3, 14), (5, 14), (3, 9), (5, 15), (3, 14)]:
        answer, _ = await ask_until_folded(api, "diff", execution_id, before=before, after=after)
        assert answers.setdefault((before, after), answer) == answer
        state, _ = await ask_until_folded(api, "state", execution_id, as_of_position=before)
        assert state["version"] == before
    assert answers[3, 14]["changes"] != answers[5, 14]["changes"]


async def test_without_rows_there_are_their_counts_and_checksums(api: Api, world: ApiWorld) -> None:
    execution_id = await a_loop(world)
    whole, _ = await ask_until_folded(api, "state", execution_id)
    outline, _ = await ask_until_folded(api, "state", execution_id, rows="false")
    assert set(map(len, outline["surfaces"].values())) == {0}
    assert outline["row_counts"] == {name: len(row) for name, row in whole["surfaces"].items()}
    assert outline["projection_checksums"] == whole["projection_checksums"]


async def test_too_many_rows_are_refused_with_the_way_out(
    api: Api, world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution_id = await a_loop(world)
    monkeypatch.setattr(history_replay, "ANSWER_BYTES_MAX", 1000)
    refused, _ = await ask_until_folded(api, "state", execution_id)
    assert (refused["http"], refused["code"]) == (413, "replay_too_large")
    assert "rows=false" in refused["hint"]
    outline, _ = await ask_until_folded(api, "state", execution_id, rows="false")
    assert outline["http"] == 200
    monkeypatch.setattr(replay_folds, "BYTES_MAX", 2000)
    refused, _ = await ask_until_folded(api, "state", await a_loop(world), rows="false")
    assert (refused["http"], refused["code"]) == (413, "replay_too_large")
    assert "projection=execution" in refused["hint"]


async def test_live_rows_are_read_in_pages_and_are_what_the_store_has(
    api: Api, world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution_id = await a_loop(world)
    monkeypatch.setattr(live_rows, "PAGE_ROWS", 2)
    answer, _ = await ask_until_folded(api, "live", execution_id)
    stored_rows = {
        surface: await world.projections.list_rows(surface, execution_id)
        for surface in rows.SURFACES
    }
    assert len(stored_rows["frame"]) > 2
    expected = proving.export_rows(
        stored_rows,
        scope=EvidenceScope(execution_id=execution_id, **PLACE),
        version=answer["version"],
        exported_at=datetime.fromisoformat(answer["exported_at"]),
    )
    plain = codec.to_builtins(expected)
    same = ("rows", "row_counts", "rows_checksum", "projection")
    assert {name: answer[name] for name in same} == {name: plain[name] for name in same}
    alone, _ = await ask_until_folded(api, "live", execution_id, projection="frame")
    assert alone["rows"] == {"frame": answer["rows"]["frame"]}
    assert alone["rows_checksum"] == codec.compute_checksum(alone["rows"])


async def test_too_many_live_rows_are_refused_with_the_way_out(
    api: Api, world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution_id = await a_loop(world)
    monkeypatch.setattr(history_replay, "ANSWER_BYTES_MAX", 1000)
    refused, _ = await ask_until_folded(api, "live", execution_id)
    assert (refused["http"], refused["code"]) == (413, "replay_too_large")
    assert "projection=execution" in refused["hint"]
    monkeypatch.setattr(history_replay, "ANSWER_BYTES_MAX", 10_000)
    alone, _ = await ask_until_folded(api, "live", execution_id, projection="execution")
    assert alone["row_counts"] == {"execution": 1}


async def test_rows_beyond_what_is_compared_are_counted(
    api: Api, world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    execution_id = await a_loop(world)
    whole, _ = await ask_until_folded(api, "diff", execution_id, before=1, after=15)
    differing = {change["path"][0:2] for change in map(_with_path, whole["changes"])}
    assert (whole["more_rows"], len(differing) > 2) == (0, True)
    monkeypatch.setattr(history_replay, "DIFF_ROWS_MAX", 2)
    part, _ = await ask_until_folded(api, "diff", execution_id, before=1, after=15)
    assert part["more_rows"] == len(differing) - 2
    assert part["is_equal"] is False
    assert len({change["path"][0:2] for change in map(_with_path, part["changes"])}) == 2


def _with_path(change: dict[str, Any]) -> dict[str, Any]:
    return {**change, "path": tuple(change["path"])}


@pytest.mark.parametrize("name", sorted(STORIES))
def test_encoded_rows_have_the_checksums_of_a_replay(name: str) -> None:
    history = STORIES[name]()
    replay, fold = (
        HistoryReplay(_empty_state(history)),
        ReplayFold(_empty_state(history), rows.SURFACES),
    )
    for envelope in history.envelopes:
        replay.feed_events([envelope])
        fold.feed_events([envelope])
    expected = build_replay_report(replay)
    report = codec.decode_json(
        codec.encode_json(build_fold_report(fold, projection="all", has_rows=True))
    )
    assert report.pop("row_counts") == {
        name: len(keyed) for name, keyed in expected["surfaces"].items()
    }
    assert report == codec.decode_json(codec.encode_json(expected))
    assert fold.weight == fold.row_bytes


def test_marked_rows_are_weighed_with_those_that_replaced_them() -> None:
    history = a_cursor_loop()
    fold = ReplayFold(_empty_state(history), rows.SURFACES)
    half = len(history.envelopes) // 2
    fold.feed_events(history.envelopes[:half])
    fold.mark_rows()
    for envelope in history.envelopes[half:]:
        fold.feed_events([envelope])
    held = {
        id(row): len(row)
        for surfaces in (fold.marked_rows, fold.rows_by_surface)
        for keyed in surfaces.values()
        for row in keyed.values()
    }
    assert fold.weight == sum(held.values())


async def test_a_replay_with_other_rows_is_another_one() -> None:
    folds = ReplayFolds()
    history = a_cursor_loop()
    fold = ReplayFold(_empty_state(history), ("frame",))
    fold.feed_events(history.envelopes[:9])
    folds.keep_fold(fold)
    execution_id = fold.state.execution_id
    assert folds.take_fold(execution_id, ("stage",), until=20) is None
    assert folds.take_fold(execution_id, ("frame",), until=8) is None
    assert folds.take_fold(execution_id, ("frame",), until=20, mark=8) is None
    assert folds.take_fold(execution_id, ("frame",), until=20, mark=9) is fold
    assert folds.take_fold(execution_id, ("frame",), until=20) is None


def _empty_state(history: History) -> Any:
    first = history.envelopes[0]
    return build_empty_state(first.execution_id, first.tenant_id, first.organization_id)


async def test_a_damaged_history_leaves_no_fold(api: Api, world: ApiWorld) -> None:
    execution_id = an_execution()
    await world.append(execution_id, [*beginning(), *ending()])
    await world.project(execution_id)
    del world.store.history_by_execution[execution_id][2]
    for _ in range(2):
        answer, _ = await ask_until_folded(api, "state", execution_id)
        assert (answer["http"], answer["code"]) == (409, "does_not_fold")
