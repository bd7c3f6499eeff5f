"""What the API tells of one frame: who held it, how each attempt ended, and its rows."""

from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import pytest
from msgspec import structs
from tests.support import storage
from tests.support.api import ApiWorld, beginning
from tests.support.identities import OWNER, make_caller, make_guarded_app, open_client
from tests.support.storage import an_execution

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec, ids
from noetl_contracts.commands.loop_collections import CollectionCut, CollectionForm
from noetl_contracts.commands.worker_pools import Pools
from noetl_contracts.events import Event
from noetl_contracts.events.execution_events import ExecutionPaused
from noetl_contracts.events.frame_events import (
    FrameAbandoned,
    FrameCommitted,
    FrameDispatched,
    FrameStarted,
)
from noetl_contracts.events.loop_events import LoopStarted, StageOpened
from noetl_contracts.identity.quotas import TenantQuota
from noetl_contracts.ids import ExecutionId, RunId, StageId, WorkerId
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef, ResultEnvelope
from noetl_contracts.status import StageKind
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.consumer import MemoryBacklogs
from noetl_messaging.streams import topology
from noetl_planner.api.loop_items import frame_history
from noetl_planner.domain.decision.draft import Limits
from noetl_playbook.views import result_envelope
from noetl_playbook.views.results import LoopResult

RUN, STAGE = RunId("11"), StageId("77")
FRAME = ids.derive_frame_id(STAGE, slot=1, frame_index=0)
LOST, LATER = WorkerId("w-1"), WorkerId("w-2")


async def store(world: ApiWorld, value: Any) -> PayloadRef:
    return await world.payloads.put_payload(
        codec.encode_json(value),
        media_type=JSON_MEDIA_TYPE,
        tenant_id=storage.TENANT,
        organization_id=storage.ORGANIZATION,
    )


def opened(**loop: Any) -> list[Event]:
    """The beginning of a loop over six items, three a frame."""
    cut = CollectionCut(items=6, units=2, size=3)
    values = {"mode": "chunked", "total": 6, "cut": cut, "max_in_flight": 2, **loop}
    return [
        StageOpened(stage_id=STAGE, run_id=RUN, step="start", kind=StageKind.LOOP, slots=2),
        LoopStarted(step="start", run_id=RUN, stage_id=STAGE, **values),
    ]


def dispatched(attempt: int, rows_ref: PayloadRef, *, start: int | None = 3) -> FrameDispatched:
    return FrameDispatched(
        frame_id=FRAME,
        stage_id=STAGE,
        step="start",
        command_id=ids.derive_command_id(RUN, "frame-1-0"),
        slot=1,
        frame_index=0,
        attempt=attempt,
        fence=attempt,
        row_count=3,
        rows_ref=rows_ref,
        start=start,
    )


def begun(attempt: int, worker_id: WorkerId) -> FrameStarted:
    return FrameStarted(
        frame_id=FRAME, stage_id=STAGE, step="start", attempt=attempt, worker_id=worker_id
    )


def abandoned() -> FrameAbandoned:
    return FrameAbandoned(
        frame_id=FRAME,
        stage_id=STAGE,
        step="start",
        attempt=1,
        reason="lease expired",
        previous_worker=LOST,
    )


def committed(results: list[Any] | None) -> FrameCommitted:
    result = None
    if results is not None:
        context = result_envelope.build_inline_context(LoopResult(results=results))
        result = ResultEnvelope(status="ok", context=context)
    return FrameCommitted(
        frame_id=FRAME,
        stage_id=STAGE,
        step="start",
        slot=1,
        frame_index=0,
        attempt=2,
        row_count=3,
        worker_id=LATER,
        result=result,
    )


async def a_run(world: ApiWorld, *events: Event) -> ExecutionId:
    execution = an_execution()
    await world.append(execution, [*beginning(), *events], has_keys=True)
    await world.project(execution)
    return execution


async def a_run_of_two_attempts(world: ApiWorld) -> ExecutionId:
    """A run whose frame was lost by one worker and committed by another."""
    ref = await store(world, list("abcdef"))
    return await a_run(
        world,
        *opened(collection_ref=ref),
        dispatched(1, ref),
        begun(1, LOST),
        abandoned(),
        dispatched(2, ref),
        begun(2, LATER),
        committed([1, 2, 3]),
    )


async def ask(world: ApiWorld, execution: str, what: str = "", **query: Any) -> Any:
    async with open_client(make_guarded_app(world), OWNER) as client:
        address = f"/api/executions/{execution}/frames/{FRAME}{what}"
        return await client.get(address, params=query)


async def test_each_attempt_of_a_frame_tells_its_worker_and_its_end() -> None:
    world = ApiWorld()
    execution = await a_run_of_two_attempts(world)
    shown = (await ask(world, execution)).json()
    assert (shown["status"], shown["row_count"], shown["first_row"]) == ("COMPLETED", 3, 3)
    lost, later = shown["leases"]
    assert (lost["attempt"], lost["worker_id"], lost["outcome"]) == (1, LOST, "abandoned")
    assert (lost["reason"], lost["error"]) == ("lease expired", None)
    assert (later["attempt"], later["worker_id"], later["outcome"]) == (2, LATER, "completed")
    for lease in (lost, later):
        assert lease["dispatched_at"] <= lease["started_at"] <= lease["ended_at"]
    assert not shown["more_leases"]


async def test_a_frame_at_work_is_held_and_has_given_nothing() -> None:
    world = ApiWorld()
    ref = await store(world, list("abcdef"))
    execution = await a_run(world, *opened(collection_ref=ref), dispatched(1, ref), begun(1, LOST))
    (lease,) = (await ask(world, execution)).json()["leases"]
    assert (lease["outcome"], lease["ended_at"]) == ("held", None)
    output = (await ask(world, execution, "/rows", side="output")).json()
    assert (output["rows"], output["total"]) == ([], 0)
    assert "has not ended" in output["note"]


async def test_the_rows_of_a_frame_are_its_part_of_the_collection() -> None:
    world = ApiWorld()
    ref = await store(world, list("abcdef"))
    execution = await a_run(
        world, *opened(collection_ref=ref), dispatched(2, ref), committed([7, 8, 9])
    )
    given = (await ask(world, execution, "/rows")).json()
    assert (given["side"], given["rows"], given["total"]) == ("input", ["d", "e", "f"], 3)
    window = (await ask(world, execution, "/rows", offset=1, limit=1)).json()
    assert (window["rows"], window["has_next"]) == (["e"], True)
    made = (await ask(world, execution, "/rows", side="output", offset=1)).json()
    assert (made["rows"], made["total"], made["has_next"]) == ([8, 9], 3, False)


async def test_the_rows_of_a_range_are_places_in_it() -> None:
    world = ApiWorld()
    ref = await store(world, [])
    execution = await a_run(
        world, *opened(collection_form=CollectionForm.RANGE), dispatched(2, ref), committed(None)
    )
    assert (await ask(world, execution, "/rows")).json()["rows"] == [3, 4, 5]
    made = (await ask(world, execution, "/rows", side="output")).json()
    assert "keeps no results" in made["note"]


async def test_the_rows_of_a_cursor_are_those_that_the_frame_recorded() -> None:
    world = ApiWorld()
    ref = await store(world, [])
    execution = await a_run(
        world, *opened(mode="cursor", cut=None, total=None), dispatched(1, ref, start=None)
    )
    missing = await ask(world, execution, "/rows")
    assert missing.status_code == HTTPStatus.NOT_FOUND
    assert "not there any more" in missing.json()["detail"]
    await world.payloads.put_named(
        f"frames/{execution}/{FRAME}",
        codec.encode_json({"rows": [{"id": 8}, {"id": 9}]}),
        tenant_id=storage.TENANT,
        organization_id=storage.ORGANIZATION,
    )
    assert (await ask(world, execution, "/rows")).json()["rows"] == [{"id": 8}, {"id": 9}]


async def test_who_may_not_read_payloads_sees_leases_and_no_rows() -> None:
    world = ApiWorld()
    ref = await store(world, list("abcdef"))
    execution = await a_run(world, *opened(collection_ref=ref), dispatched(1, ref))
    viewer = await make_caller(world, "viewer")
    address = f"/api/executions/{execution}/frames/{FRAME}"
    async with open_client(make_guarded_app(world), viewer) as client:
        assert (await client.get(address)).status_code == HTTPStatus.OK
        assert (await client.get(f"{address}/rows")).status_code == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    ("frame", "status"), [("7", HTTPStatus.NOT_FOUND), ("seven", HTTPStatus.BAD_REQUEST)]
)
async def test_a_frame_that_is_not_there_is_refused(frame: str, status: HTTPStatus) -> None:
    world = ApiWorld()
    execution = await a_run(world)
    async with open_client(make_guarded_app(world), OWNER) as client:
        answer = await client.get(f"/api/executions/{execution}/frames/{frame}")
    assert answer.status_code == status


async def ask_wait(world: ApiWorld, execution: str) -> Any:
    return (await ask(world, execution)).json()["waiting"]


def lost(*, retry_at: datetime | None) -> FrameAbandoned:
    return structs.replace(abandoned(), retry_at=retry_at)


async def test_a_frame_says_until_when_its_retry_waits_and_that_it_is_paused() -> None:
    world = ApiWorld()
    ref = await store(world, list("abcdef"))
    begin = [*opened(collection_ref=ref), dispatched(1, ref), begun(1, LOST)]
    soon = datetime.now(UTC) + timedelta(hours=1)
    waiting = await ask_wait(world, await a_run(world, *begin, lost(retry_at=soon)))
    assert waiting["kind"] == "retry"
    assert datetime.fromisoformat(waiting["until"]) == soon
    assert "lease expired" in waiting["reason"]
    past = datetime.now(UTC) - timedelta(hours=1)
    waiting = await ask_wait(world, await a_run(world, *begin, lost(retry_at=past)))
    assert "was due" in waiting["reason"]
    paused = await a_run(
        world, *begin, lost(retry_at=soon), ExecutionPaused(request_id="p", reason="wait")
    )
    waiting = await ask_wait(world, paused)
    assert waiting["kind"] == "paused"
    assert f"noetl resume {paused}" in waiting["reason"]


async def test_a_frame_says_that_nothing_tells_why_it_waits_and_one_that_ended_waits_not() -> None:
    world = ApiWorld()
    ref = await store(world, list("abcdef"))
    begin = [*opened(collection_ref=ref), dispatched(1, ref)]
    waiting = await ask_wait(world, await a_run(world, *begin))
    assert (waiting["kind"], waiting["since"]) == ("not known", None)
    done = structs.replace(committed([1, 2, 3]), attempt=1)
    assert await ask_wait(world, await a_run(world, *begin, begun(1, LATER), done)) is None


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        ("ISSUED", "no worker", "no worker serves pool 'big'"),
        ("PARKED", "task", "for a message"),
        ("RUNNING", "lease", "worker w-9 holds it"),
        ("COMPLETED", "not known", "not known"),
    ],
)
async def test_a_frame_waits_for_what_its_command_waits_for(
    status: str, kind: str, says: str
) -> None:
    world = ApiWorld()
    ref = await store(world, list("abcdef"))
    execution = await a_run(world, *opened(collection_ref=ref), dispatched(1, ref))
    put_command_row(world, execution, status)
    waiting = await ask_wait(world, execution)
    assert waiting["kind"] == kind
    assert says in waiting["reason"]


async def test_a_frame_waits_for_its_tenants_share_and_for_no_quota() -> None:
    world = ApiWorld()
    ref = await store(world, list("abcdef"))
    execution = await a_run(world, *opened(collection_ref=ref), dispatched(1, ref))
    put_command_row(world, execution, "ISSUED")
    tenant_id = storage.TENANT
    # A quota that is used up refuses starts: it holds nothing that runs.
    world.store.quotas[tenant_id] = TenantQuota(
        tenant_id=tenant_id, running_max=1, stored_bytes_max=1, is_suspended=True
    )
    broker = MemoryBroker(
        topology.declare_topology(shard_count=1, pools=["big"], tenants=[tenant_id]), SystemClock()
    )
    await broker.ensure_streams()
    broker.asking[topology.COMMANDS, topology.build_worker_consumer("big", "io", tenant_id)] += 1
    limits = Limits(pools=Pools(by_stream=("big",)), tenants=frozenset({tenant_id}))
    app = make_guarded_app(world, limits=limits, backlogs=MemoryBacklogs(broker))
    async with open_client(app, OWNER) as client:
        answer = await client.get(f"/api/executions/{execution}/frames/{FRAME}")
    waiting = answer.json()["waiting"]
    assert waiting["kind"] == "share"
    assert f"the share of tenant '{tenant_id}' in pool 'big'" in waiting["reason"]


def put_command_row(world: ApiWorld, execution: str, status: str) -> None:
    """Show how the command of the frame stands, in pool big."""
    command_id = str(ids.derive_command_id(RUN, "frame-1-0"))
    row = {
        "execution_id": execution,
        "command_id": command_id,
        "status": status,
        "pool": "big",
        "lane": "io",
        "worker_id": "w-9",
        "heard_at": datetime.now(UTC),
    }
    world.store.row_by_key_by_surface.setdefault("command", {})[execution, command_id] = row


async def test_a_frame_of_the_past_is_held_by_who_held_it_then_and_has_given_nothing() -> None:
    world = ApiWorld()
    execution = await a_run_of_two_attempts(world)
    present = (await ask(world, execution)).json()
    assert (await ask(world, execution, version=10)).json() == present
    then = (await ask(world, execution, version=6)).json()
    assert (then["status"], then["waiting"]) == ("RUNNING", None)
    (lease,) = then["leases"]
    assert (lease["worker_id"], lease["outcome"], lease["ended_at"]) == (LOST, "held", None)
    output = (await ask(world, execution, "/rows", side="output", version=6)).json()
    assert (output["rows"], output["note"]) == ([], frame_history.NOT_ENDED_NOTE)
    given = (await ask(world, execution, "/rows", version=6)).json()
    assert given["rows"] == ["d", "e", "f"]
    refused = await ask(world, execution, version=4)
    assert (refused.status_code, "at version 4" in refused.json()["detail"]) == (404, True)


async def test_frames_are_listed_as_they_were_at_a_version() -> None:
    world = ApiWorld()
    execution = await a_run_of_two_attempts(world)
    async with open_client(make_guarded_app(world), OWNER) as client:
        address = f"/api/executions/{execution}/frames"

        async def list_frames(**query: Any) -> list[tuple[Any, ...]]:
            answer = await client.get(address, params=query)
            assert answer.status_code == HTTPStatus.OK, answer.text
            page = answer.json()
            assert page["total"] >= len(page["frames"])
            return [
                (frame["status"], frame["attempts"], frame["owner_worker"])
                for frame in page["frames"]
            ]

        head = (await client.get(f"/api/executions/{execution}/moment")).json()["head_version"]
        first = head - 5
        assert await list_frames(version=first - 1) == []
        assert await list_frames(version=first + 1) == [("RUNNING", 1, LOST)]
        assert await list_frames(version=first + 1, status="running", stage_id=STAGE) != []
        assert await list_frames(version=first + 1, status="completed") == []
        assert await list_frames(version=first + 1, stage_id="78") == []
        assert await list_frames(version=first + 1, offset=1) == []
        assert await list_frames(version=head) == [("COMPLETED", 2, LATER)]
        live, past = [
            (await client.get(address, params=query)).json() for query in ({}, {"version": head})
        ]
        assert live == past
        assert (await client.get(address, params={"version": head + 1})).status_code == 400
