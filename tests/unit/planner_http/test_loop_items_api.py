"""Items of loops over HTTP: what is shown of inputs and errors, and what is refused."""

from typing import Any

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support import storage
from tests.support.api import ApiWorld, beginning
from tests.support.storage import an_execution

from noetl_contracts import codec, ids, locators
from noetl_contracts.commands.loop_collections import (
    CollectionCut,
    CollectionForm,
    ListPart,
    PartList,
)
from noetl_contracts.errors import ErrorObject, FailedTry
from noetl_contracts.events import Event
from noetl_contracts.events.command_events import (
    CommandCompleted,
    CommandFailed,
    CommandIssued,
    CommandReissued,
)
from noetl_contracts.events.frame_events import FrameCommitted, FrameDispatched, FrameFailed
from noetl_contracts.events.loop_events import LoopStarted, StageOpened
from noetl_contracts.events.step_events import CallDone, CallError
from noetl_contracts.ids import ExecutionId, RunId, StageId, WorkerId
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef, ResultEnvelope
from noetl_contracts.status import StageKind
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import LoopResult

Api = AsyncTestClient[Litestar]
RUN = RunId("11")
STAGE = StageId("77")
SEALED = "sealed:v1:0123abcd:QUJDREVGRw"
OK = ResultEnvelope(status="ok")


def error(message: str = "boom", **about: Any) -> ErrorObject:
    return ErrorObject(kind="python", message=message, **about)


def started(**about: Any) -> LoopStarted:
    values = {"step": "start", "run_id": RUN, "mode": "parallel", "max_in_flight": 3}
    return LoopStarted(**{**values, **about})


def issued(index: int) -> CommandIssued:
    unit = f"item-{index}"
    return CommandIssued(
        command_id=ids.derive_command_id(RUN, unit),
        run_id=RUN,
        step="start",
        unit=unit,
        pool="default",
        lane="io",
        attempts_max=3,
        item_index=index,
    )


def done(index: int) -> CallDone:
    command_id = ids.derive_command_id(RUN, f"item-{index}")
    return CallDone(step="start", run_id=RUN, command_id=command_id, result=OK, item_index=index)


def broken(index: int, cause: ErrorObject) -> CallError:
    command_id = ids.derive_command_id(RUN, f"item-{index}")
    return CallError(step="start", run_id=RUN, command_id=command_id, error=cause, item_index=index)


async def told(api: Api, world: ApiWorld, events: list[Event], **query: Any) -> Any:
    execution = an_execution()
    await world.append(execution, [*beginning(), *events], has_keys=True)
    await world.project(execution)
    answer = await api.get(f"/api/executions/{execution}/items/start", params=query)
    assert answer.status_code == 200, answer.text
    assert "QUJD" not in answer.text
    return answer.json()


async def test_an_item_has_its_input_its_error_and_its_attempts(api: Api, world: ApiWorld) -> None:
    tried = FailedTry(task="t", attempt=1, at=storage.WallClock().now(), kind="http", message="503")
    cause = error(tries=[tried], details={"traceback": "line 3"})
    lost = CommandReissued(
        command_id=ids.derive_command_id(RUN, "item-1"),
        run_id=RUN,
        step="start",
        attempt=2,
        reason="its lease ended",
        previous_worker=WorkerId("w-1"),
    )
    page = await told(
        api,
        world,
        [
            started(total=4, collection=["a", {"key": SEALED}, "c", "d"]),
            *(issued(0), issued(1), issued(2)),
            *(lost, done(0), broken(1, cause)),
        ],
    )
    states = [item["state"] for item in page["items"]]
    assert states == ["completed", "failed", "pending", "pending"]
    failed = page["items"][1]
    assert failed["input"] == {"key": "***"}
    assert failed["error"]["message"] == "boom"
    assert failed["error"]["details"] == {"traceback": "line 3"}
    assert failed["attempts"] == 2
    assert [entry["message"] for entry in failed["tries"]] == ["its lease ended", "503"]
    assert failed["tries"][0]["worker_id"] == "w-1"
    assert page["counts"] == {"total": 4, "completed": 1, "failed": 1, "running": 1}
    assert not page["has_more"]


async def test_a_large_input_is_shown_by_where_it_is_kept(api: Api, world: ApiWorld) -> None:
    large = {"text": f"{SEALED} " + "x" * 10_000}
    part = await world.payloads.put_payload(
        codec.encode_json(["a", large]),
        media_type=JSON_MEDIA_TYPE,
        tenant_id=storage.TENANT,
        organization_id=storage.ORGANIZATION,
    )
    listed = PartList(total=5, parts=[ListPart(start=3, end=5, ref=part)])
    reference = await world.payloads.put_payload(
        codec.encode_json(listed),
        media_type=JSON_MEDIA_TYPE,
        tenant_id=storage.TENANT,
        organization_id=storage.ORGANIZATION,
    )
    loop = started(total=5, collection_ref=reference, collection_form=CollectionForm.PARTS)
    page = await told(api, world, [loop, issued(4), broken(4, error())], state="failed")
    (item,) = page["items"]
    assert item["input"] is None
    shown = item["input_ref"]
    assert (shown["ref"], shown["place"]) == (part.uri, 1)
    assert shown["bytes"] > 10_000
    assert shown["preview"].startswith('{"text":"*** xxx')
    assert len(shown["preview"]) == 200


async def test_an_input_whose_payload_is_gone_says_so(api: Api, world: ApiWorld) -> None:
    missing = PayloadRef(
        uri=locators.build_payload_locator(storage.TENANT, storage.ORGANIZATION, "0" * 64),
        sha256="0" * 64,
        media_type=JSON_MEDIA_TYPE,
        payload_bytes=9,
    )
    page = await told(api, world, [started(total=1, collection_ref=missing), broken(0, error())])
    assert "no payload is stored" in page["items"][0]["input_problem"]


def opened(**policy: Any) -> StageOpened:
    return StageOpened(
        stage_id=STAGE,
        run_id=RUN,
        step="start",
        kind=StageKind.LOOP,
        slots=1,
        frame_policy=policy,
    )


def dispatched(
    slot: int, rows: int, *, index: int = 0, start: int | None = None
) -> FrameDispatched:
    return FrameDispatched(
        frame_id=ids.derive_frame_id(STAGE, slot=slot, frame_index=index),
        stage_id=STAGE,
        step="start",
        command_id=ids.derive_command_id(RUN, f"frame-{slot}-{index}"),
        slot=slot,
        frame_index=index,
        attempt=1,
        fence=1,
        row_count=rows,
        rows_ref=PayloadRef(
            uri="noetl://x", sha256="0" * 64, media_type=JSON_MEDIA_TYPE, payload_bytes=2
        ),
        start=start,
    )


def frame_failed(slot: int, rows: int, failed: int, result: list[Any] | None) -> FrameFailed:
    kept = None
    if result is not None:
        kept = ResultEnvelope(
            status="ok", context=result_envelope.build_inline_context(LoopResult(results=result))
        )
    return FrameFailed(
        frame_id=ids.derive_frame_id(STAGE, slot=slot, frame_index=0),
        stage_id=STAGE,
        step="start",
        slot=slot,
        frame_index=0,
        attempt=1,
        row_count=rows,
        rows_failed=failed,
        error=error("the first", details={"row_index": 2}),
        result=kept,
    )


def record(message: str) -> dict[str, Any]:
    return {"status": "error", "error": {"kind": "python", "message": message}}


CHUNKS = {
    "mode": "chunked",
    "total": 6,
    "stage_id": STAGE,
    "cut": CollectionCut(items=6, units=2, size=3),
}


async def test_a_failed_frame_tells_which_rows_failed(api: Api, world: ApiWorld) -> None:
    page = await told(
        api,
        world,
        [
            opened(max_rows=3),
            started(collection_form=CollectionForm.RANGE, **CHUNKS),
            dispatched(0, 3, start=0),
            frame_failed(0, 3, 1, [1, record("bad row"), 3]),
        ],
    )
    assert [item["state"] for item in page["items"]] == [
        *("completed", "failed", "completed"),
        *("pending", "pending", "pending"),
    ]
    assert page["items"][1]["error"]["message"] == "bad row"
    assert page["items"][1]["frame"]["row"] == 1
    assert page["notes"] == []


@pytest.mark.parametrize(
    "result",
    [None, [1, record("bad row"), record("what a row gave looks like a failure")]],
    ids=["no results", "results that look like failures"],
)
async def test_a_frame_without_a_record_of_its_rows_is_shown_as_one(
    api: Api, world: ApiWorld, result: list[Any] | None
) -> None:
    page = await told(
        api,
        world,
        [
            opened(max_rows=3),
            started(collection_form=CollectionForm.RANGE, **CHUNKS),
            dispatched(0, 3, start=0),
            frame_failed(0, 3, 1, result),
        ],
        state="failed",
    )
    (item,) = page["items"]
    assert (item["record"], item["index"], item["count"], item["failed"]) == ("frame", 0, 3, 1)
    assert item["error"]["message"] == "the first"
    assert "keep no record of their rows" in page["notes"][0]


async def test_rows_of_a_cursor_are_read_from_the_records_of_their_frames(
    api: Api, world: ApiWorld
) -> None:
    execution = an_execution()
    frame = ids.derive_frame_id(STAGE, slot=1, frame_index=0)
    await world.payloads.put_named(
        f"frames/{execution}/{frame}",
        codec.encode_json({"rows": [{"id": 8}, {"id": 9}]}),
        tenant_id=storage.TENANT,
        organization_id=storage.ORGANIZATION,
    )
    committed = FrameCommitted(
        frame_id=ids.derive_frame_id(STAGE, slot=0, frame_index=0),
        stage_id=STAGE,
        step="start",
        slot=0,
        frame_index=0,
        attempt=1,
        row_count=2,
        worker_id=WorkerId("w"),
    )
    events: list[Event] = [
        *beginning(),
        opened(max_rows=2),
        started(mode="cursor", stage_id=STAGE, max_in_flight=2),
        dispatched(0, 2),
        committed,
        dispatched(1, 2),
        frame_failed(1, 2, 1, [5, record("no 9")]),
        dispatched(1, 3, index=1),
    ]
    await world.append(execution, events, has_keys=True)
    await world.project(execution)
    found: list[tuple[str, Any]] = []
    after, has_more = "", True
    while has_more:
        address = f"/api/executions/{execution}/items/start"
        page = (await api.get(address, params={"limit": 2, "after": after})).json()
        assert len(page["items"]) <= 2
        found += [(item["state"], item["input"]) for item in page["items"]]
        after, has_more = page["next_after"], page["has_more"]
        assert "no place in a collection" in page["notes"][0]
    assert found[:4] == [
        *(("completed", None), ("completed", None)),
        *(("completed", {"id": 8}), ("failed", {"id": 9})),
    ]
    assert [state for state, _ in found[4:]] == ["pending"] * 3


async def refusal(api: Api, execution_id: ExecutionId, step: str, **query: str) -> tuple[int, str]:
    answer = await api.get(f"/api/executions/{execution_id}/items/{step}", params=query)
    return answer.status_code, answer.json()["code"]


async def test_what_has_no_items_is_refused(api: Api, world: ApiWorld) -> None:
    execution = an_execution()
    await world.append(execution, beginning(), has_keys=True)
    await world.project(execution)
    assert await refusal(api, execution, "start") == (404, "no_loop")
    assert await refusal(api, execution, "a/step") == (404, "not_found")
    assert await refusal(api, an_execution(), "start") == (404, "not_found")


@pytest.mark.parametrize(
    "query", [{"after": "x"}, {"after": "-7"}, {"state": "bad"}, {"limit": "0"}, {"limit": "9999"}]
)
async def test_a_page_that_cannot_be_is_refused(
    api: Api, world: ApiWorld, query: dict[str, str]
) -> None:
    execution = an_execution()
    await world.append(execution, [*beginning(), started(total=1, collection=[1])], has_keys=True)
    await world.project(execution)
    assert (await refusal(api, execution, "start", **query))[0] == 400


async def run_items(api: Api, world: ApiWorld) -> ExecutionId:
    """A loop of three items: the first two were handed out, then the second and the first ended."""
    execution = an_execution()
    loop = started(total=3, collection=["a", "b", "c"])
    second = CommandFailed(
        command_id=ids.derive_command_id(RUN, "item-1"),
        run_id=RUN,
        step="start",
        attempt=1,
        error=error(),
    )
    first = CommandCompleted(
        command_id=ids.derive_command_id(RUN, "item-0"),
        run_id=RUN,
        step="start",
        attempt=1,
        worker_id=WorkerId("w"),
    )
    events = [
        *(*beginning(), loop, issued(0), issued(1)),
        *(second, broken(1, error()), first, done(0)),
    ]
    await world.append(execution, events, has_keys=True)
    await world.project(execution)
    return execution


async def test_items_are_shown_as_they_were_at_a_version(api: Api, world: ApiWorld) -> None:
    execution = await run_items(api, world)

    async def list_states(version: int | None, **query: Any) -> list[str]:
        asked = query if version is None else {"version": version, **query}
        answer = await api.get(f"/api/executions/{execution}/items", params=asked)
        assert answer.status_code == 200, answer.text
        return [item["state"] for item in answer.json()["items"]]

    assert await list_states(3) == ["pending", "pending", "pending"]
    assert await list_states(5) == ["running", "running", "pending"]
    assert await list_states(7) == ["running", "failed", "pending"]
    assert await list_states(7, state="running") == ["running"]
    assert await list_states(9) == await list_states(None) == ["completed", "failed", "pending"]


async def test_counts_of_items_are_those_of_the_version(api: Api, world: ApiWorld) -> None:
    execution = await run_items(api, world)
    answer = await api.get(f"/api/executions/{execution}/items/start", params={"version": 7})
    counts = answer.json()["counts"]
    assert counts == {"total": 3, "completed": 0, "failed": 1, "running": 1}


@pytest.mark.parametrize(
    ("version", "status", "code"), [(2, 404, "no_loop"), (99, 400, "bad_request")]
)
async def test_items_before_the_loop_and_after_the_end_are_refused(
    api: Api, world: ApiWorld, version: int, status: int, code: str
) -> None:
    execution = await run_items(api, world)
    for address in ("items", "items/start"):
        answer = await api.get(
            f"/api/executions/{execution}/{address}", params={"version": version}
        )
        assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


async def test_rows_of_frames_have_the_times_of_their_frames(api: Api, world: ApiWorld) -> None:
    execution = an_execution()
    events = [
        *beginning(),
        opened(max_rows=3),
        started(collection_form=CollectionForm.RANGE, **CHUNKS),
        dispatched(0, 3, start=0),
        frame_failed(0, 3, 1, [1, record("bad row"), 3]),
    ]
    await world.append(execution, events, has_keys=True)
    await world.project(execution)
    address = f"/api/executions/{execution}/items"
    item = (await api.get(address)).json()["items"][0]
    assert item["issued_at"] < item["ended_at"]
    then = (await api.get(address, params={"version": 5})).json()
    assert [item["state"] for item in then["items"]] == ["running"] * 3 + ["pending"] * 3
    assert all(item["error"] is None for item in then["items"])


async def test_a_step_in_the_query_is_answered_as_one_in_the_path(
    api: Api, world: ApiWorld
) -> None:
    execution = await run_items(api, world)
    address = f"/api/executions/{execution}/items"
    for query in ({}, {"version": 7}, {"state": "failed"}):
        pages = [
            (await api.get(address, params={"step": "start", **query})).json(),
            (await api.get(address, params=query)).json(),
        ]
        assert pages == [(await api.get(f"{address}/start", params=query)).json()] * 2
    document = (await api.get("/schema/openapi.json")).json()
    parameters = document["paths"]["/api/executions/{execution_id}/items"]["get"]["parameters"]
    (step,) = [parameter for parameter in parameters if parameter["name"] == "step"]
    assert step["schema"]["deprecated"] is True
