"""Wishes about running executions, their `ctx`, and their results, over HTTP."""

import random
from base64 import b64encode
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from msgspec import structs
from tests.support.api import ApiWorld, beginning, ending
from tests.support.storage import ORGANIZATION, TENANT, an_execution

from noetl_contracts import codec, spread_table
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import Event
from noetl_contracts.events.execution_events import (
    CancelRequested,
    CtxPatched,
    ExecutionCancelled,
    ExecutionPaused,
)
from noetl_contracts.events.step_events import CallDone, CallError, StepEnter, StepExit
from noetl_contracts.ids import CommandId, ExecutionId, RunId
from noetl_contracts.payloads import (
    ARROW_MEDIA_TYPE,
    PayloadRef,
    ResultEnvelope,
)
from noetl_contracts.requests import facts
from noetl_contracts.spread_table import SPREAD_MEDIA_TYPE, SpreadTable
from noetl_contracts.status import RunStatus
from noetl_planner.api.app import create_app
from noetl_planner.api.lookup import payload_reader
from noetl_planner.domain.decision.draft import Limits
from noetl_playbook.views import ctx_references, result_envelope
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_storage.arrow import encoding
from noetl_storage.payloads.factory import find_store_tier

Api = AsyncTestClient[Litestar]
ROWS = [{"i": index} for index in range(10)]


def of(raw: Any, kind: str = "python") -> PipelineResult:
    return PipelineResult(tasks={"t": TaskResult(kind=kind, raw=raw)}, last="t")


def ended_well(result: ResultEnvelope, *, run: str = "11", step: str = "start") -> CallDone:
    return CallDone(step=step, run_id=RunId(run), command_id=CommandId("21"), result=result)


def left(run: str) -> StepExit:
    return StepExit(step="start", run_id=RunId(run), status=RunStatus.COMPLETED)


async def stored(world: ApiWorld, value: Any) -> PayloadRef:
    return await world.payloads.put_payload(
        codec.encode_json(value),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type="application/json",
    )


async def running(world: ApiWorld, *events: Event) -> ExecutionId:
    execution = an_execution()
    await world.append(execution, [*beginning(), *events])
    await world.project(execution)
    return execution


def asked(world: ApiWorld) -> list[facts.Fact]:
    """What the planner has been asked."""
    return [
        fact
        for message in world.store.message_by_id.values()
        for fact in facts.decode_fact_batch(message.row.data).facts
    ]


@pytest.mark.parametrize("kind", ["pause", "resume"])
async def test_a_wish_is_a_durable_request_with_an_identity(
    api: Api, world: ApiWorld, kind: str
) -> None:
    known = await running(world)
    answer = await api.post(f"/api/executions/{known}/{kind}")
    assert answer.status_code == 202
    assert answer.json() == {"execution_id": known, "status": "RUNNING", "accepted": True}
    (fact,) = asked(world)
    assert isinstance(fact, facts.PauseRequested | facts.ResumeRequested)
    assert fact.request_id in world.store.request_by_id
    await api.post(f"/api/executions/{known}/{kind}")
    assert len({item.request_id for item in asked(world)}) == 2  # type: ignore[union-attr]  # wishes


async def test_a_reason_and_the_children_are_part_of_the_wish(api: Api, world: ApiWorld) -> None:
    known = await running(world)
    await api.post(f"/api/executions/{known}/pause", json={"reason": "a look"})
    await api.post(f"/api/executions/{known}/cancel", json={"reason": "no", "cascade": False})
    paused, cancelled = asked(world)
    assert isinstance(paused, facts.PauseRequested)
    assert paused.reason == "a look"
    assert isinstance(cancelled, facts.CancelRequested)
    assert (cancelled.reason, cancelled.cascade) == ("no", False)


@pytest.mark.parametrize("kind", ["cancel", "pause", "resume"])
async def test_what_has_ended_answers_with_its_status(api: Api, world: ApiWorld, kind: str) -> None:
    known = await running(world, *ending())
    answer = await api.post(f"/api/executions/{known}/{kind}")
    assert answer.json() == {"execution_id": known, "status": "COMPLETED", "accepted": False}
    assert asked(world) == []
    assert (await api.post(f"/api/executions/{an_execution()}/{kind}")).status_code == 404


async def test_a_paused_execution_shows_it_and_is_listed_as_such(api: Api, world: ApiWorld) -> None:
    known = await running(world, ExecutionPaused(request_id="p"))
    status = (await api.get(f"/api/executions/{known}/status")).json()
    assert (status["status"], status["completed"], status["failed"]) == ("PAUSED", False, False)
    listed = (await api.get("/api/executions", params={"status": "PAUSED"})).json()
    assert [execution["execution_id"] for execution in listed["executions"]] == [known]


async def test_a_cancelled_execution_says_so_in_its_error(api: Api, world: ApiWorld) -> None:
    known = await running(world, CancelRequested(), ExecutionCancelled(reason="no"))
    assert (await api.get(f"/api/executions/{known}/status")).json()["error"]["kind"] == "cancelled"


async def test_the_status_holds_what_the_language_promises(api: Api, world: ApiWorld) -> None:
    known = await running(world, CtxPatched(patch={"n": 1}))
    status = (await api.get(f"/api/executions/{known}/status")).json()
    promised = {"status", "completed", "failed", "current_step", "completed_steps", "error"}
    assert promised | {"variables", "duration"} <= status.keys()
    assert (status["current_step"], status["variables"]) == ("start", {"n": 1})
    page = (await api.get(f"/api/executions/{known}", params={"page_size": 2})).json()
    assert page["pagination"] == {"page": 1, "page_size": 2, "total": 3, "has_next": True}
    assert page["events"][0].keys() >= {
        *("event_id", "event_type", "node_id", "node_name", "status", "created_at"),
        *("context", "result", "meta", "error"),
    }


async def test_values_of_ctx_are_read_by_name(api: Api, world: ApiWorld) -> None:
    big = {"list": [1, 2, 3]}
    marker = ctx_references.build_marker(await stored(world, big), big)
    known = await running(world, CtxPatched(patch={"n": 1, "big": marker}))
    shown = (await api.get(f"/api/vars/{known}")).json()["variables"]
    assert shown["n"] == 1
    assert shown["big"].keys() == {"_ref"}
    assert (await api.get(f"/api/vars/{known}/n")).json()["value"] == 1
    assert (await api.get(f"/api/vars/{known}/big")).json()["value"] == big
    assert (await api.get(f"/api/vars/{known}/no")).status_code == 404


async def test_a_write_is_a_wish_and_a_large_value_goes_by_reference(
    api: Api, world: ApiWorld
) -> None:
    known = await running(world, CtxPatched(patch={"n": 1}))
    small = await api.put(f"/api/vars/{known}/n", json={"value": None})
    assert (small.status_code, small.json()["accepted"]) == (202, True)
    large = "x" * 20_000
    await api.put(f"/api/vars/{known}/text", json={"value": large})
    await api.delete(f"/api/vars/{known}/n")
    first, second, third = asked(world)
    assert isinstance(first, facts.CtxWriteRequested)
    assert isinstance(second, facts.CtxWriteRequested)
    assert isinstance(third, facts.CtxWriteRequested)
    assert first.patch == {"n": None}
    reference = ctx_references.get_marker_reference(second.patch["text"])
    assert codec.decode_json(await world.payloads.read_payload(reference)) == large
    assert third.removed == ["n"]


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [("no name", 1, 422), ("1st", 1, 422), ("fine", {ctx_references.KEY: {}}, 422)],
)
async def test_a_write_that_makes_no_sense_is_refused(
    api: Api, world: ApiWorld, name: str, value: object, status: int
) -> None:
    known = await running(world)
    answer = await api.put(f"/api/vars/{known}/{name}", json={"value": value})
    assert answer.status_code == status
    assert asked(world) == []


async def test_what_has_ended_takes_no_write(api: Api, world: ApiWorld) -> None:
    known = await running(world, CtxPatched(patch={"n": 1}), *ending())
    for answer in (
        await api.put(f"/api/vars/{known}/n", json={"value": 2}),
        await api.delete(f"/api/vars/{known}/n"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "execution_ended")
    assert (await api.delete(f"/api/vars/{known}/no")).status_code == 404


async def test_a_step_whose_name_has_slashes_has_a_result_too(api: Api, world: ApiWorld) -> None:
    name = "load a/b (50%)"
    result = ResultEnvelope(status="ok", context=result_envelope.build_inline_context(of({"n": 1})))
    known_names = await running(world, ended_well(result, step=name))
    shown = (await api.get(f"/api/result/{known_names}/{quote(name, safe='')}")).json()
    assert (shown["step"], shown["data"]) == (name, {"n": 1})
    assert (await api.get(f"/api/result/{known_names}/list")).json()["results"][0]["step"] == name
    assert (await api.get(f"/api/result/{known_names}/stats")).json()["results"] == 1


@pytest.mark.parametrize("name", ["list", "stats", "a/list"])
async def test_a_step_called_as_a_route_has_a_result_by_its_own_address(
    api: Api, world: ApiWorld, name: str
) -> None:
    result = ResultEnvelope(status="ok", context=result_envelope.build_inline_context(of({"n": 1})))
    known_names = await running(world, ended_well(result, step=name))
    shown = (await api.get(f"/api/executions/{known_names}/result/{quote(name, safe='')}")).json()
    assert (shown["step"], shown["data"]) == (name, {"n": 1})


async def test_the_last_result_is_of_the_step_that_ended_last_with_one(
    api: Api, world: ApiWorld
) -> None:
    nothing = ResultEnvelope(status="ok", context=result_envelope.build_inline_context(of({})))
    something = ResultEnvelope(
        status="ok", context=result_envelope.build_inline_context(of({"n": 1}))
    )
    known = await running(
        world, ended_well(something), ended_well(something, step="b"), ended_well(nothing, step="c")
    )
    listed = (await api.get(f"/api/result/{known}/list")).json()
    assert [result["step"] for result in listed["results"]] == ["start", "b", "c"]
    assert listed["last_step"] == "b"
    empty = await running(world, ended_well(nothing))
    assert (await api.get(f"/api/result/{empty}/list")).json()["last_step"] is None


async def test_results_are_read_by_step_and_row_sets_by_windows(api: Api, world: ApiWorld) -> None:
    raw = {"rows": ROWS, "row_count": 10, "columns": ["i"], "status": "ok"}
    reference = await stored(world, of(raw, "postgres"))
    result = ResultEnvelope(
        status="ok",
        reference=reference,
        context=result_envelope.build_reference_context(of(raw), {"row_count": 10}),
    )
    known = await running(world, ended_well(result), left("11"))
    answer = await api.get(f"/api/result/{known}/start", params={"offset": 8, "limit": 5})
    shown = answer.json()
    assert shown["data"]["rows"] == ROWS[8:]
    assert (shown["total"], shown["offset"], shown["has_next"]) == (10, 8, False)
    # The locator is the one that templates see as `_ref.ref`.
    assert shown["ref"] == f"noetl://execution/{known}/result/start/11"
    resolved = (
        await api.get("/api/result/resolve", params={"ref": shown["ref"], "limit": 3})
    ).json()
    assert resolved["data"]["rows"] == ROWS[:3]
    assert (resolved["total"], resolved["has_next"]) == (10, True)
    assert resolved["sha256"] == reference.sha256
    (outline,) = (await api.get(f"/api/result/{known}/list")).json()["results"]
    assert (outline["step"], outline["bytes"], outline["fields"]) == (
        "start",
        reference.payload_bytes,
        {"row_count": 10},
    )
    stats = (await api.get(f"/api/result/{known}/stats")).json()
    assert (stats["results"], stats["stored"], stats["inline"]) == (1, 1, 0)
    assert (await api.get(f"/api/result/{known}/no")).status_code == 404


async def store_arrow(world: ApiWorld, *, compression: Any = None, **fields: Any) -> PayloadRef:
    raw = {"rows": ROWS, "row_count": 10, "columns": ["i"], "types": ["int32"]}
    data = encoding.encode_table(codec.to_builtins(of(raw)), ("tasks", "t", "raw"), format_="arrow")
    assert data is not None
    given = {"schema_digest": encoding.find_schema_digest(data), **fields}
    return await world.payloads.put_payload(
        data if compression is None else encoding.compress_bytes(data, compression),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=ARROW_MEDIA_TYPE,
        **given,
    )


async def show_stored(api: Api, world: ApiWorld, reference: PayloadRef) -> Any:
    """Return the view of a stored result, after the list has told the same of it."""
    context = {"shape": result_envelope.PIPELINE, "fields": {}}
    result = ResultEnvelope(status="ok", reference=reference, context=context)
    known = await running(world, ended_well(result), left("11"))
    shown = (await api.get(f"/api/result/{known}/start")).json()
    listed = await api.get(f"/api/result/{known}/list", params={"schema_of": "start"})
    (outline,) = listed.json()["results"]
    for field in ("tier", "media_type", "schema"):
        assert outline[field] == shown[field]
    (plain,) = (await api.get(f"/api/result/{known}/list")).json()["results"]
    assert (plain["tier"], plain["schema"]) == (shown["tier"], None)
    return shown


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
async def test_the_schema_of_an_arrow_payload_is_told(
    api: Api, world: ApiWorld, compression: str | None
) -> None:
    reference = await store_arrow(world, compression=compression)
    shown = await show_stored(api, world, reference)
    assert (shown["tier"], shown["media_type"]) == ("memory", ARROW_MEDIA_TYPE)
    column = {"name": "i", "type": "int32", "nullable": True}
    assert shown["schema"] == {"columns": [column], "total": 1}


@pytest.mark.parametrize(
    ("url", "tier"),
    [
        ("file:///var/noetl", "disk"),
        ("s3://bucket?region=eu", "object store"),
        ("gs://bucket", "object store"),
        ("azure://container?account=a", "object store"),
        ("memory://", "memory"),
    ],
)
def test_the_address_of_a_store_says_what_kind_of_place_it_is(url: str, tier: str) -> None:
    assert find_store_tier(url) == tier


def make_parquet(rows: int) -> bytes:
    """A file of one column that does not compress, in many row groups."""
    numbers = random.Random(7).randbytes(8 * rows)
    column = pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(numbers)])
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    sink = pa.BufferOutputStream()
    table = pa.Table.from_arrays([column], schema=schema)
    pq.write_table(table, sink, row_group_size=1000, use_dictionary=False)
    data: bytes = sink.getvalue().to_pybytes()
    return data


async def store_parquet(world: ApiWorld, data: bytes, digest: str | None) -> PayloadRef:
    return await world.payloads.put_payload(
        data,
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=encoding.PARQUET_MEDIA_TYPE,
        schema_digest=digest,
    )


async def find_shown_schema(api: Api, world: ApiWorld, reference: PayloadRef) -> Any:
    """The schema in the list of results, of a payload of any length."""
    result = ResultEnvelope(status="ok", reference=reference)
    known = await running(world, ended_well(result), left("11"))
    listed = await api.get(f"/api/result/{known}/list", params={"schema_of": "start"})
    assert listed.is_success, listed.text
    return listed.json()["results"][0]["schema"]


NUMBERS = {"columns": [{"name": "n", "type": "int64", "nullable": False}], "total": 1}


@pytest.mark.parametrize("compression", [None, "gzip", "zstd"])
async def test_the_schema_of_a_parquet_payload_is_told(
    api: Api, world: ApiWorld, compression: Any
) -> None:
    raw = {"rows": ROWS, "row_count": 10, "columns": ["i"], "types": ["int32"]}
    place = ("tasks", "t", "raw")
    data = encoding.encode_table(codec.to_builtins(of(raw)), place, format_="parquet")
    assert data is not None
    packed = data if compression is None else encoding.compress_bytes(data, compression)
    digest = encoding.find_schema_digest(data)
    reference = await store_parquet(world, packed, digest)
    if compression is not None:
        reference = structs.replace(reference, payload_bytes=len(data), codec=compression)
    shown = await show_stored(api, world, reference)
    column = {"name": "i", "type": "int32", "nullable": True}
    assert shown["schema"] == {"columns": [column], "total": 1}
    assert shown["data"]["rows"] == ROWS


async def test_the_footer_of_a_long_parquet_payload_is_read_within_bounds(
    api: Api, world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_parquet(2_500_000)
    assert len(data) > payload_reader.RESOLVED_BYTES_MAX
    reference = await store_parquet(world, data, encoding.find_schema_digest(data))
    assert await find_shown_schema(api, world, reference) == NUMBERS
    monkeypatch.setattr(payload_reader, "FOOTED_BYTES_MAX", len(data) - 1)
    assert await find_shown_schema(api, world, reference) is None
    # A reference that tells of less does not make more be read.
    short = structs.replace(reference, payload_bytes=1)
    assert await find_shown_schema(api, world, short) is None
    monkeypatch.undo()
    monkeypatch.setattr(payload_reader, "FOOTER_BYTES_MAX", 16 * 1024)
    assert await find_shown_schema(api, world, reference) is None


@pytest.mark.parametrize("spoil", ["digest", "no digest", "cut", "no table"])
async def test_a_parquet_schema_that_nothing_vouches_for_is_not_told(
    api: Api, world: ApiWorld, spoil: str
) -> None:
    data = make_parquet(10)
    digest = encoding.find_schema_digest(data)
    spoiled = {"cut": data[:-9], "no table": b"{}"}.get(spoil, data)
    told = {"digest": "0" * 64, "no digest": None}.get(spoil, digest)
    reference = await store_parquet(world, spoiled, told)
    assert await find_shown_schema(api, world, reference) is None


@pytest.mark.parametrize("digest", [None, "0" * 64])
async def test_a_schema_that_nothing_vouches_for_is_not_told(
    api: Api, world: ApiWorld, digest: str | None
) -> None:
    reference = await store_arrow(world, schema_digest=digest)
    shown = await show_stored(api, world, reference)
    assert shown["schema"] is None
    assert shown["data"]["rows"] == ROWS


async def test_a_result_too_large_for_an_answer_still_has_its_schema(
    api: Api, world: ApiWorld
) -> None:
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_table(pa.table({"n": range(3_000_000)}, schema=schema))
    reference = await world.payloads.put_payload(
        sink.getvalue().to_pybytes(),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=ARROW_MEDIA_TYPE,
        schema_digest=encoding.digest_schema(schema),
    )
    result = ResultEnvelope(status="ok", reference=reference)
    known = await running(world, ended_well(result), left("11"))
    assert (await api.get(f"/api/result/{known}/start")).json()["code"] == "payload_too_large"
    listed = await api.get(f"/api/result/{known}/list", params={"schema_of": "start"})
    (outline,) = listed.json()["results"]
    assert outline["schema"]["columns"] == [{"name": "n", "type": "int64", "nullable": False}]


async def test_a_table_in_many_objects_has_the_schema_of_its_manifest(
    api: Api, world: ApiWorld
) -> None:
    spread = SpreadTable(
        row_count=0,
        payload_bytes=0,
        schema=b64encode(pa.schema({"n": pa.float64()}).serialize().to_pybytes()).decode(),
        columns=["n"],
        parts=[],
    )
    kept = codec.to_builtins(of({"rows": spread_table.build_marker(spread), "columns": ["n"]}))
    reference = structs.replace(await stored(world, kept), media_type=SPREAD_MEDIA_TYPE)
    shown = await show_stored(api, world, reference)
    assert shown["data"]["rows"] == []
    assert shown["schema"]["columns"] == [{"name": "n", "type": "double", "nullable": True}]


async def test_a_payload_that_is_gone_has_no_schema_and_its_list_is_shown(
    api: Api, world: ApiWorld
) -> None:
    reference = await store_arrow(world)
    await world.payloads.delete_payload(reference)
    result = ResultEnvelope(status="ok", reference=reference)
    known = await running(world, ended_well(result), left("11"))
    listed = await api.get(f"/api/result/{known}/list", params={"schema_of": "start"})
    (outline,) = listed.json()["results"]
    assert (outline["tier"], outline["schema"]) == ("memory", None)


async def test_a_small_result_says_that_it_lies_in_the_ledger(api: Api, world: ApiWorld) -> None:
    context = result_envelope.build_inline_context(of({"n": 1}))
    known = await running(world, ended_well(ResultEnvelope(status="ok", context=context)))
    shown = (await api.get(f"/api/result/{known}/start")).json()
    assert (shown["tier"], shown["media_type"], shown["schema"]) == ("ledger", None, None)


async def test_a_result_that_is_none_is_said_to_be_none(api: Api, world: ApiWorld) -> None:
    reference = await stored(world, {"tasks": 7})
    context = {"shape": result_envelope.PIPELINE, "fields": {}}
    result = ResultEnvelope(status="ok", reference=reference, context=context)
    known = await running(world, ended_well(result), left("11"))
    of_run, of_task = (f"noetl://execution/{known}/result/start/11{task}" for task in ("", "/t"))
    for path in (
        f"/api/result/{known}/start",
        f"/api/result/resolve?ref={quote(of_run)}",
        f"/api/result/resolve?ref={quote(of_task)}",
    ):
        answer = await api.get(path)
        assert (answer.status_code, answer.json()["code"]) == (422, "not_a_result"), path


async def test_an_earlier_run_and_a_task_of_it_resolve_as_well(api: Api, world: ApiWorld) -> None:
    first = ResultEnvelope(status="ok", context=result_envelope.build_inline_context(of({"a": 1})))
    second = ResultEnvelope(status="ok", context=result_envelope.build_inline_context(of({"a": 2})))
    known = await running(
        world,
        ended_well(first),
        left("11"),
        StepEnter(step="start", run_id=RunId("12"), activation=2),
        ended_well(second, run="12"),
        left("12"),
    )
    for ref, data in (("start/11", {"a": 1}), ("start/11/t", {"a": 1})):
        answer = await api.get(
            "/api/result/resolve", params={"ref": f"noetl://execution/{known}/result/{ref}"}
        )
        assert answer.status_code == 200, answer.text
        shown = answer.json()["data"]
        assert {key: shown[key] for key in data} == data, ref
    for wrong in ("start/99", "start/11/no", "nothing/11"):
        answer = await api.get(
            "/api/result/resolve", params={"ref": f"noetl://execution/{known}/result/{wrong}"}
        )
        assert answer.status_code == 404, wrong


async def test_a_failed_step_shows_its_error_as_its_result(api: Api, world: ApiWorld) -> None:
    failed = CallError(
        step="start",
        run_id=RunId("11"),
        command_id=CommandId("21"),
        error=ErrorObject(kind="timeout", message="no answer"),
    )
    known = await running(world, failed)
    shown = (await api.get(f"/api/result/{known}/start")).json()
    assert (shown["status"], shown["error"]["kind"]) == ("error", "timeout")


async def test_a_playbook_that_needs_what_is_not_enabled_is_refused(world: ApiWorld) -> None:
    text = (
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p, path: p}\n"
        "executor: {requires: {tools: [python]}}\nworkflow: [{step: a, tool: {kind: noop}}]\n"
    )
    async with AsyncTestClient(
        create_app(world.services(limits=Limits(tools=("http", "noop"))))
    ) as api:
        await api.post("/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"})
        answer = await api.post("/api/execute", json={"path": "p"})
    assert (answer.status_code, answer.json()["code"]) == (422, "requirement_missing")
    assert world.store.message_by_id == {}
