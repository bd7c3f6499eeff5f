"""The past over HTTP: states at cuts, differences, stored events, live rows, density, audits."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from msgspec import structs
from tests.support.api import ApiWorld, beginning, ending
from tests.support.builders import a_cursor_loop
from tests.support.storage import NOON, ORGANIZATION, TENANT, an_execution

from noetl_contracts import codec
from noetl_contracts.events.step_events import CallDone
from noetl_contracts.ids import CommandId, ExecutionId, RunId
from noetl_contracts.ledger import stored_event
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef, ResultEnvelope
from noetl_planner.api.app import create_app
from noetl_replay import snapshot
from noetl_replay.fold import fold_history
from noetl_replay.state import build_empty_state
from noetl_storage.memory.ledger import MemoryLedgerAudit
from noetl_storage.ports.errors import StorageUnavailable

Api = AsyncTestClient[Litestar]
PLACE = {"tenant_id": TENANT, "organization_id": ORGANIZATION}


async def a_run(world: ApiWorld) -> ExecutionId:
    execution_id = an_execution()
    await world.append(execution_id, [*beginning(), *ending()])
    await world.project(execution_id)
    return execution_id


async def a_loop(world: ApiWorld) -> ExecutionId:
    """A history with rows of every surface that there are."""
    execution_id = an_execution()
    await world.append(execution_id, [envelope.event for envelope in a_cursor_loop().envelopes])
    await world.project(execution_id)
    return execution_id


async def ask(api: Api, path: str, execution_id: str, **params: Any) -> Any:
    asked = {"execution_id": execution_id, **PLACE, **params}
    answer = await api.get(f"/api/replay/{path}", params=asked)
    return answer.json() | {"http": answer.status_code}


async def test_the_latest_state_is_the_live_one(api: Api, world: ApiWorld) -> None:
    execution_id = await a_loop(world)
    state = await ask(api, "state", execution_id)
    live = await ask(api, "live", execution_id)
    assert (state["http"], live["http"]) == (200, 200)
    assert state["version"] == state["head_version"] == live["version"]
    assert state["status"] == "COMPLETED"
    keyed = {
        surface: {next(v for k, v in row.items() if k == key): row for row in live["rows"][surface]}
        for surface, key in [("frame", "frame_id"), ("loop", "run_id"), ("stage", "stage_id")]
    }
    for surface, found in keyed.items():
        assert state["surfaces"][surface] == found
        assert state["projection_checksums"][surface] == codec.compute_checksum(found)
    assert live["row_counts"]["frame"] == len(live["rows"]["frame"]) > 0
    assert live["rows_checksum"] == codec.compute_checksum(live["rows"])
    assert codec.compute_checksum(state["state"]) == state["state_checksum"]


async def test_event_position_and_time_cut_alike(api: Api, world: ApiWorld) -> None:
    execution_id = await a_run(world)
    event = world.store.history_by_execution[execution_id][1]
    by_position = await ask(api, "state", execution_id, as_of_position=2)
    by_event = await ask(api, "state", execution_id, as_of_event_id=event.event_id)
    just_after = event.event_time + timedelta(microseconds=1)
    by_time = await ask(api, "state", execution_id, as_of_time=just_after.isoformat())
    without_zone = just_after.replace(tzinfo=None).isoformat()
    assert by_position == by_event == by_time
    assert by_time == await ask(api, "state", execution_id, as_of_time=without_zone)
    assert (by_position["version"], by_position["status"]) == (2, "RUNNING")


@pytest.mark.parametrize(
    ("params", "status", "words"),
    [
        ({"as_of_position": 1, "as_of_event_id": "1"}, 400, "given 2 times"),
        ({"as_of_position": 99}, 400, "positions are 1 to 4"),
        ({"as_of_position": 0}, 400, "no position 0"),
        ({"as_of_event_id": "12"}, 404, "has no event 12"),
        ({"as_of_event_id": "x"}, 400, "not an event id"),
        ({"as_of_time": "2020-01-01T00:00:00Z"}, 404, "had not begun"),
        ({"as_of_time": "yesterday"}, 400, "write a time as 2026-01-31T12:00Z"),
        ({"projection": "everything"}, 400, "projection"),
    ],
)
async def test_cuts_that_make_no_sense_are_refused(
    api: Api, world: ApiWorld, params: dict[str, Any], status: int, words: str
) -> None:
    answer = await ask(api, "state", await a_run(world), **params)
    assert answer["http"] == status
    assert words in answer["detail"] + answer.get("hint", "")


@pytest.mark.parametrize("path", ["state", "live", "events", "payloads", "density", "diff"])
async def test_whose_history_it_is_must_be_said(api: Api, world: ApiWorld, path: str) -> None:
    execution_id = await a_run(world)
    known = {"execution_id": execution_id, **({"before": 1} if path == "diff" else {})}
    for missing in PLACE:
        fields = {name: value for name, value in PLACE.items() if name != missing}
        answer = await api.get(f"/api/replay/{path}", params={**known, **fields})
        assert answer.status_code == 400
        assert missing in answer.json()["detail"]
        other = await api.get(f"/api/replay/{path}", params={**known, **PLACE, missing: "other"})
        assert other.status_code == 404
        assert "asks about tenant" in other.json()["detail"]


async def test_one_projection_may_be_chosen(api: Api, world: ApiWorld) -> None:
    execution_id = await a_loop(world)
    frames = await ask(api, "state", execution_id, projection="frame")
    assert list(frames["surfaces"]) == list(frames["projection_checksums"]) == ["frame"]
    everything = await ask(api, "state", execution_id)
    assert frames["projection_checksums"]["frame"] == everything["projection_checksums"]["frame"]


async def test_a_snapshot_of_the_past_changes_nothing_but_time(api: Api, world: ApiWorld) -> None:
    execution_id = await a_loop(world)
    history = world.store.history_by_execution[execution_id]
    without = await ask(api, "state", execution_id, projection="execution", as_of_position=15)
    folded = fold_history(build_empty_state(execution_id, TENANT, ORGANIZATION), history[:12])
    kept = snapshot.build_snapshot(folded)
    await world.services().history.past_snapshots.keep_snapshot(kept, spacing_versions=1)
    within = await ask(api, "state", execution_id, projection="execution", as_of_position=15)
    assert (without.pop("events_folded"), within.pop("events_folded")) == (15, 3)
    assert without == within
    at_it = await ask(api, "state", execution_id, projection="execution", as_of_position=12)
    assert (at_it["events_folded"], len(at_it["surfaces"]["execution"])) == (0, 1)
    for damaged in (
        structs.replace(kept, state=kept.state.replace(b"RUNNING", b"PENDING")),
        structs.replace(kept, upcaster_digest="0" * 64),
        structs.replace(kept, fold_version=99),
        structs.replace(kept, state=b"{", checksum=codec.digest_hex(b"{")),
    ):
        world.store.past_by_execution[execution_id] = {12: damaged}
        again = await ask(api, "state", execution_id, projection="execution", as_of_position=15)
        assert again.pop("events_folded") == 15
        assert again == without


async def test_two_moments_of_a_run_are_compared_at_an_address_of_the_run(
    api: Api, world: ApiWorld
) -> None:
    execution_id = await a_run(world)
    address = f"/api/executions/{execution_id}/moments/difference"
    asked = await ask(api, "diff", execution_id, before=2, after=4)
    found = (await api.get(address, params={"before": 2, "after": 4})).json()
    assert found == {name: value for name, value in asked.items() if name != "http"}
    # Nothing named: the middle of the history with its end.
    assert (await api.get(address)).json() == found
    late = await api.get(address, params={"before": 2, "after": 5})
    assert (late.status_code, late.json()["code"]) == (400, "no_such_position")


async def test_differences_are_shown_as_a_tree(api: Api, world: ApiWorld) -> None:
    execution_id = await a_run(world)
    found = await ask(api, "diff", execution_id, before=2, after=4)
    assert (found["is_equal"], found["is_live"]) == (False, False)
    assert found["tree"][0] == "execution"
    assert any('~ status: "RUNNING" -> "COMPLETED"' in line for line in found["tree"])
    same = await ask(api, "diff", execution_id, before=4)
    assert (same["is_live"], same["is_equal"], same["tree"]) == (True, True, [])
    world.store.row_by_key_by_surface["execution"][(execution_id, execution_id)]["rows"] = 99
    wrong = await ask(api, "diff", execution_id, before=4)
    assert wrong["tree"][-1].strip() == "~ rows: 0 -> 99"


async def test_stored_events_prove_themselves(api: Api, world: ApiWorld) -> None:
    execution_id = await a_loop(world)
    events: list[Any] = []
    page = await ask(api, "events", execution_id, limit=7)
    while True:
        events += page["events"]
        if not page["has_more"]:
            break
        page = await ask(api, "events", execution_id, limit=7, after=page["next_after"])
    assert len(events) == len(world.store.history_by_execution[execution_id])
    before = codec.CHECKSUM_NONE
    for event in events:
        assert stored_event.is_stored_event_sealed(
            codec.convert_value(event, stored_event.StoredEvent), before
        )
        before = event["envelope_checksum"]


async def with_payload(world: ApiWorld, *, data: bytes | None) -> ExecutionId:
    execution_id = an_execution()
    reference = await world.payloads.put_payload(b'{"a": 1}', media_type=JSON_MEDIA_TYPE, **PLACE)
    if data is None:
        await world.payloads.delete_payload(reference)
    done = CallDone(
        step="start",
        run_id=RunId("11"),
        command_id=CommandId("5"),
        result=ResultEnvelope(status="ok", reference=reference),
    )
    await world.append(execution_id, [*beginning(), done, *ending()])
    return execution_id


@pytest.mark.parametrize(("data", "status"), [(b"kept", "resolved"), (None, "missing")])
async def test_payloads_are_resolved_when_asked_for(
    api: Api, world: ApiWorld, data: bytes | None, status: str
) -> None:
    execution_id = await with_payload(world, data=data)
    state = await ask(api, "state", execution_id, resolve_payloads=True)
    (item,) = state["payload_resolution"]["payloads"]
    assert item["status"] == status
    assert state["payload_resolution"]["summary"]["all_resolved"] is (status == "resolved")
    assert "payload_resolution" not in await ask(api, "state", execution_id)
    page = await ask(api, "payloads", execution_id)
    assert [payload["status"] for payload in page["payloads"]] == [status]


@pytest.mark.parametrize("path", ["state", "payloads"])
async def test_payloads_of_a_store_that_is_away_are_to_be_asked_for_again(
    api: Api, world: ApiWorld, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    async def away(_: PayloadRef) -> AsyncIterator[bytes]:
        raise StorageUnavailable("connection refused")
        yield b""

    execution_id = await with_payload(world, data=b"kept")
    monkeypatch.setattr(world.payloads, "stream_payload", away)
    wanted = {"resolve_payloads": True} if path == "state" else {}
    answer = await ask(api, path, execution_id, **wanted)
    assert answer["http"] == 503


async def test_the_density_of_a_run_is_shown_in_spans(api: Api, world: ApiWorld) -> None:
    execution_id = await a_loop(world)
    found = await ask(api, "density", execution_id, spans=10)
    assert sum(bucket["events"] for bucket in found["buckets"]) == found["version"]
    assert len(found["buckets"]) <= 10
    assert found["buckets"][-1]["last_version"] == found["version"]
    assert found["buckets"][0]["began_at"] > NOON.isoformat()


async def test_an_untouched_history_is_whole(api: Api, world: ApiWorld) -> None:
    execution_id = await a_run(world)
    answer = (await api.get(f"/api/audit/executions/{execution_id}", params=PLACE)).json()
    assert (answer["is_whole"], answer["events"], answer["version"]) == (True, 4, 4)
    heads = (await api.get("/api/audit/heads", params=PLACE)).json()
    assert heads["heads"] == [
        {"execution_id": execution_id, "version": 4, "checksum": answer["checksum"]}
    ]


async def test_a_changed_event_is_named(api: Api, world: ApiWorld) -> None:
    execution_id = await a_run(world)
    history = world.store.history_by_execution[execution_id]
    history[2] = structs.replace(history[2], producer="somebody")
    answer = (await api.get(f"/api/audit/executions/{execution_id}", params=PLACE)).json()
    assert answer["is_whole"] is False
    assert [(finding["damage"], finding["version"]) for finding in answer["findings"]] == [
        ("changed", 3)
    ]


async def test_an_exported_head_shows_what_the_ledger_cannot(api: Api, world: ApiWorld) -> None:
    execution_id = await a_run(world)
    path = f"/api/audit/executions/{execution_id}"
    exported = {"version": 9, "checksum": "0" * 64}
    answer = (await api.get(path, params={**PLACE, **exported})).json()
    assert "versions 5 to 9 were removed, as the exported head shows" in str(answer["findings"])
    half = await api.get(path, params={**PLACE, "version": 9})
    assert half.status_code == 400
    gone = (
        await api.get(f"/api/audit/executions/{an_execution()}", params={**PLACE, **exported})
    ).json()
    assert "versions 1 to 9 were removed" in str(gone["findings"])
    unknown = await api.get(f"/api/audit/executions/{an_execution()}", params=PLACE)
    assert unknown.status_code == 404


async def test_a_history_that_does_not_fold_says_so(api: Api, world: ApiWorld) -> None:
    execution_id = await a_run(world)
    del world.store.history_by_execution[execution_id][2]
    answer = await ask(api, "state", execution_id)
    assert (answer["http"], answer["code"]) == (409, "does_not_fold")
    assert "noetl audit verify" in answer["hint"]


class Growing:
    """Ports of one world; its history goes on before the nth look at any of them."""

    def __init__(self, world: ApiWorld, execution_id: ExecutionId, *, at: int) -> None:
        self._world, self._execution_id = world, execution_id
        self._until = at

    def over(self, port: Any) -> Any:
        growing = self

        class Port:
            def __getattr__(self, name: str) -> Any:
                async def look(*args: Any, **kwargs: Any) -> Any:
                    await growing.look()
                    return await getattr(port, name)(*args, **kwargs)

                return look

        return Port()

    async def look(self) -> None:
        self._until -= 1
        if self._until == 0:
            await self._world.append(self._execution_id, ending())


@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
async def test_a_history_that_grows_while_it_is_audited_is_whole(world: ApiWorld, at: int) -> None:
    execution_id = an_execution()
    await world.append(execution_id, beginning())
    growing = Growing(world, execution_id, at=at)
    services = world.services(
        audit=growing.over(MemoryLedgerAudit(world.store)), ledger=growing.over(world.ledger)
    )
    async with AsyncTestClient(create_app(services)) as client:
        path = f"/api/audit/executions/{execution_id}"
        answer = (await client.get(path, params=PLACE)).json()
    assert (answer["is_whole"], answer["findings"]) == (True, [])
    assert answer["version"] == (2 if at == 5 else 4)


async def test_results_are_listed_as_they_were_at_a_version(api: Api, world: ApiWorld) -> None:
    execution_id = await a_loop(world)
    address = f"/api/result/{execution_id}/list"
    latest = (await api.get(address)).json()
    head = (await ask(api, "state", execution_id))["head_version"]
    assert (await api.get(address, params={"version": head})).json() == latest
    assert latest["results"]
    assert (await api.get(address, params={"version": 2})).json()["results"] == []
    late = await api.get(address, params={"version": head + 1})
    assert late.status_code == 400


async def test_a_result_is_shown_as_it_was_at_a_version(api: Api, world: ApiWorld) -> None:
    execution_id = await a_loop(world)
    outline, *_ = (await api.get(f"/api/result/{execution_id}/list")).json()["results"]
    address = f"/api/executions/{execution_id}/result/{outline['step']}"
    latest = (await api.get(address)).json()
    head = (await ask(api, "state", execution_id))["head_version"]
    assert (await api.get(address, params={"version": head})).json() == latest
    assert (await api.get(address, params={"version": 2})).status_code == 404
    assert (await api.get(address, params={"version": head + 1})).status_code == 400
