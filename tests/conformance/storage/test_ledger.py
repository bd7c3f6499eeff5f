import asyncio
from datetime import timedelta, timezone

import pytest
from msgspec import structs
from tests.support.storage import (
    NOON,
    SHARD_COUNT,
    Stores,
    a_fence,
    a_request,
    a_run,
    a_stream,
    an_append,
    an_execution,
    eventually,
    settled,
)

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import Event
from noetl_contracts.events.execution_events import CtxPatched
from noetl_contracts.events.frame_events import FrameCommitted, FrameEnd, FrameFailed
from noetl_contracts.events.loop_events import LoopDone, LoopStarted, LoopStats
from noetl_contracts.events.step_events import CallDone, CallError, ItemEnd
from noetl_contracts.ids import CommandId, ExecutionId, FrameId, RunId, StageId, WorkerId
from noetl_contracts.ledger.envelope import seal_envelope
from noetl_contracts.ledger.records import AppendResult, ShardFence
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_storage.ports.errors import DuplicateKey, ShardLost, VersionConflict


async def test_a_history_reads_back_as_it_was_sealed(stores: Stores) -> None:
    execution = an_execution()
    result = ResultEnvelope(status="ok", context={"data": {"n": 1, "x": 0.5, "s": "é\n"}})
    stream = a_stream(
        execution,
        [
            a_run(),
            CallDone(step="fetch", run_id=RunId("1"), command_id=CommandId("7"), result=result),
            CallError(
                step="fetch",
                run_id=RunId("1"),
                command_id=CommandId("8"),
                error=ErrorObject(kind="http", message="no", status=500),
            ),
        ],
        causation_id="c",
        correlation_id="r",
        meta={"a": [1, {"b": None}]},
        payload_ref=PayloadRef(uri="noetl://x", sha256="0" * 64, media_type="m", payload_bytes=3),
    )
    appended = await stores.ledger.append(an_append(await a_fence(stores), stream))

    events = await stores.ledger_reader.read_events(execution)

    assert [event.event for event in events] == [envelope.event for envelope in stream.envelopes]
    assert {event.ingest_time for event in events} == {appended.ingest_time}
    previous = ""
    for event in events:
        assert seal_envelope(event, previous) == event
        previous = event.envelope_checksum
    head = await stores.ledger_reader.find_head(execution)
    assert head is not None
    assert (head.version, head.checksum) == (3, previous)


@pytest.mark.parametrize(
    "value",
    [1e20, 1e300, -0.0, 1e-7, 0.1, 1.0, 2**70, "nul \x00 here", "\\u0000", "1e5", "\x01\U0001f600"],
)
async def test_values_that_json_columns_would_change_keep_their_seal(
    stores: Stores, value: object
) -> None:
    execution = an_execution()
    stream = a_stream(execution, [CtxPatched(patch={"a": [value], "b": value})])
    await stores.ledger.append(an_append(await a_fence(stores), stream))

    (found,) = await stores.ledger_reader.read_events(execution)

    assert seal_envelope(found, "") == found
    assert found.event == stream.envelopes[0].event


@pytest.mark.parametrize(
    "value",
    [
        {"zeta": 1, "b": 2, "alpha": 3},
        {"b": 1, "a": 2},
        {"": 0, "a": [{"name": "x", "id": 1}]},
        {"id": {"z": 1, "y": 2}},
        {"é": 1, "zz": 2, "a": 3},
        {"\U0001f600": 1, "abcde": 2},
    ],
)
async def test_mappings_keep_the_order_of_their_keys(stores: Stores, value: object) -> None:
    execution = an_execution()
    tasks = {"t": {"kind": "python", "raw": value}}
    contexts = (
        {"shape": "pipeline", "data": {"tasks": tasks, "last": "t"}},
        {"data": value},
    )
    ends: list[Event] = [
        CallDone(
            step="fetch",
            run_id=RunId("1"),
            command_id=CommandId(str(number)),
            result=ResultEnvelope(status="ok", context=context),
        )
        for number, context in enumerate(contexts)
    ]
    started = LoopStarted(
        step="each", run_id=RunId("2"), mode="parallel", max_in_flight=1, collection=[value]
    )
    events = [CtxPatched(patch={"c": value}), started, *ends]
    await stores.ledger.append(an_append(await a_fence(stores), a_stream(execution, events)))

    found = await stores.ledger_reader.read_events(execution)

    patched, looped, pipeline, plain = (codec.to_builtins(event.event) for event in found)
    texts = [
        codec.encode_text(shown)
        for shown in (
            patched["patch"]["c"],
            looped["collection"][0],
            pipeline["result"]["context"]["data"]["tasks"]["t"]["raw"],
            plain["result"]["context"]["data"],
        )
    ]
    assert texts == [codec.encode_text(value)] * 4


async def test_a_time_in_another_zone_keeps_its_seal(stores: Stores) -> None:
    execution = an_execution()
    there = NOON.astimezone(timezone(timedelta(hours=5)))
    stream = a_stream(execution, [a_run()], event_time=there)
    await stores.ledger.append(an_append(await a_fence(stores), stream))

    (found,) = await stores.ledger_reader.read_events(execution)

    assert seal_envelope(found, "") == found


async def test_reading_goes_on_after_a_version_and_is_bounded(stores: Stores) -> None:
    execution = an_execution()
    stream = a_stream(execution, [a_run(activation=n) for n in range(1, 8)])
    await stores.ledger.append(an_append(await a_fence(stores), stream))

    page = await stores.ledger_reader.read_events(execution, after_version=2, events_max=3)

    assert [item.stream_version for item in page] == [3, 4, 5]
    assert await stores.ledger_reader.read_events(execution, after_version=7) == []
    assert await stores.ledger_reader.read_events(an_execution()) == []
    assert await stores.ledger_reader.find_head(an_execution()) is None


async def test_a_stale_writer_writes_nothing(stores: Stores) -> None:
    fence = await a_fence(stores)
    known, other = an_execution(), an_execution()
    await stores.ledger.append(an_append(fence, a_stream(known, [a_run()])))

    for expected in (0, 2):
        stale = a_stream(known, [a_run()], after=expected)
        with pytest.raises(VersionConflict):
            await stores.ledger.append(
                an_append(fence, a_stream(other, [a_run()]), stale, messages=2)
            )

    assert await stores.ledger_reader.find_head(other) is None
    assert await stores.ledger_reader.read_events(other) == []
    assert await stores.outbox.count_backlog() == (0, 0.0)
    head = await stores.ledger_reader.find_head(known)
    assert head is not None
    assert head.version == 1


async def test_one_of_many_writers_of_the_same_version_wins(stores: Stores) -> None:
    fence = await a_fence(stores)
    execution = an_execution()
    for version in (0, 1):
        outcomes = await asyncio.gather(
            *(
                stores.ledger.append(
                    an_append(fence, a_stream(execution, [a_run()], after=version), messages=1)
                )
                for _ in range(8)
            ),
            return_exceptions=True,
        )
        assert sum(isinstance(outcome, AppendResult) for outcome in outcomes) == 1
        assert sum(isinstance(outcome, VersionConflict) for outcome in outcomes) == 7
    assert (await stores.outbox.count_backlog())[0] == 2


async def test_a_key_is_used_once_in_an_execution(stores: Stores) -> None:
    fence = await a_fence(stores)
    execution = an_execution()
    key = "done:(1, 2), x"
    await stores.ledger.append(an_append(fence, a_stream(execution, [a_run()], keys=[key])))

    with pytest.raises(DuplicateKey) as caught:
        await stores.ledger.append(
            an_append(fence, a_stream(execution, [a_run(), a_run()], after=1, keys=["n", key]))
        )

    assert caught.value.key == key
    assert [
        event.stream_version for event in await stores.ledger_reader.read_events(execution)
    ] == [1]
    elsewhere = a_stream(an_execution(), [a_run()], keys=[key])
    await stores.ledger.append(an_append(fence, elsewhere))
    await stores.ledger.append(
        an_append(fence, a_stream(execution, [a_run()], after=1, keys=["n"]))
    )


async def test_a_writer_without_the_shard_writes_nothing(stores: Stores) -> None:
    fence = await a_fence(stores)
    execution = an_execution()
    impostors = [
        ShardFence(shard=fence.shard, owner="planner-2", epoch=fence.epoch),
        ShardFence(shard=fence.shard, owner=fence.owner, epoch=fence.epoch - 1),
        ShardFence(shard=SHARD_COUNT + 1, owner=fence.owner, epoch=fence.epoch),
    ]
    for impostor in impostors:
        with pytest.raises(ShardLost):
            await stores.ledger.append(
                an_append(impostor, a_stream(execution, [a_run()]), messages=1)
            )
    assert await stores.ledger_reader.find_head(execution) is None
    assert await stores.outbox.count_backlog() == (0, 0.0)


async def test_a_writer_whose_lease_ended_writes_nothing(stores: Stores) -> None:
    fence = await a_fence(stores, lease_s=0.2)

    async def is_lost() -> bool:
        try:
            await stores.ledger.append(an_append(fence, a_stream(an_execution(), [a_run()])))
        except ShardLost:
            return True
        return False

    await eventually(is_lost, what="the lease ends")


async def test_events_messages_and_settled_requests_come_together(stores: Stores) -> None:
    fence = await a_fence(stores)
    execution = an_execution()
    request = a_request(execution_id=execution)
    await stores.requests.submit_request(request)
    (row,) = await stores.outbox.claim_rows(owner="outbox-1", lease_s=60, rows_max=10)
    await stores.outbox.settle_rows([row.outbox_id])
    assert await eventually(
        lambda: stores.requests.redrive_requests(older_than_s=0.0, requests_max=10),
        what="a redrive",
    )
    (again,) = await stores.outbox.claim_rows(owner="outbox-1", lease_s=60, rows_max=10)
    assert (again.data, again.message_id != row.message_id) == (row.data, True)
    await stores.outbox.settle_rows([again.outbox_id])

    appended = await stores.ledger.append(
        an_append(
            fence,
            a_stream(execution, [a_run()]),
            messages=3,
            settled_requests=[settled(request)],
        )
    )

    ids = appended.outbox_ids
    assert ids == sorted(ids)
    rows = await stores.outbox.claim_rows(owner="outbox-1", lease_s=60, rows_max=10)
    assert [item.outbox_id for item in rows] == ids
    await stores.outbox.settle_rows(ids)
    assert await stores.requests.redrive_requests(older_than_s=-1.0, requests_max=10) == 0


async def test_an_append_without_events_may_carry_messages(stores: Stores) -> None:
    ids = (await stores.ledger.append(an_append(await a_fence(stores), messages=1))).outbox_ids
    assert len(ids) == 1


async def test_a_gap_is_refused_before_it_is_written(stores: Stores) -> None:
    fence = await a_fence(stores)
    stream = a_stream(an_execution(), [a_run(), a_run()])
    gapped = structs.replace(stream, envelopes=stream.envelopes[1:])
    with pytest.raises(ValueError, match="version"):
        await stores.ledger.append(an_append(fence, gapped))


async def test_item_results_come_in_item_order(stores: Stores) -> None:
    fence = await a_fence(stores)
    execution = an_execution()
    ok = ResultEnvelope(status="ok")

    def done(index: int | None, run: str = "1") -> CallDone:
        return CallDone(
            step="l", run_id=RunId(run), command_id=CommandId("5"), result=ok, item_index=index
        )

    failed = CallError(
        step="l",
        run_id=RunId("1"),
        command_id=CommandId("5"),
        error=ErrorObject(kind="k", message="m"),
        item_index=1,
    )
    events: list[Event] = [
        a_run(),
        done(10),
        done(2),
        failed,
        done(0),
        done(None),
        done(3, run="2"),
    ]
    await stores.ledger.append(an_append(fence, a_stream(execution, events)))

    item_results = await stores.ledger_reader.list_item_results(execution, "1", results_max=9)
    first = await stores.ledger_reader.list_item_results(execution, "1", results_max=3)
    rest = await stores.ledger_reader.list_item_results(
        execution, "1", after_index=2, results_max=3
    )

    def indices(page: list[ItemEnd]) -> list[int | None]:
        return [item.item_index for item in page]

    broken = await stores.ledger_reader.list_failed_items(execution, "1", results_max=9)
    behind = await stores.ledger_reader.list_failed_items(
        execution, "1", after_index=1, results_max=9
    )

    assert (broken, behind) == ([failed], [])
    assert indices(item_results) == [0, 1, 2, 10]
    assert (indices(first), indices(rest)) == ([0, 1, 2], [10])


async def test_frame_results_come_by_slot_and_frame_page_by_page(stores: Stores) -> None:
    fence, execution = await a_fence(stores), an_execution()

    def committed(slot: int, index: int, *, stage: str = "77") -> Event:
        return FrameCommitted(
            frame_id=FrameId(str(1000 * int(stage) + 10 * slot + index)),
            stage_id=StageId(stage),
            step="l",
            slot=slot,
            frame_index=index,
            attempt=1,
            row_count=3,
            worker_id=WorkerId("w"),
        )

    failed = FrameFailed(
        frame_id=FrameId("5"),
        stage_id=StageId("77"),
        step="l",
        slot=1,
        frame_index=1,
        attempt=1,
        row_count=3,
        rows_failed=1,
        error=ErrorObject(kind="k", message="m"),
    )
    events: list[Event] = [
        committed(10, 0),
        committed(1, 0),
        failed,
        committed(0, 0, stage="78"),
        committed(0, 0),
    ]
    await stores.ledger.append(an_append(fence, a_stream(execution, events)))

    first = await stores.ledger_reader.list_frame_results(execution, "77", results_max=2)
    rest = await stores.ledger_reader.list_frame_results(
        execution, "77", after=(1, 0), results_max=9
    )

    def places(page: list[FrameEnd]) -> list[tuple[int, int]]:
        return [(item.slot, item.frame_index) for item in page]

    assert (places(first), places(rest)) == ([(0, 0), (1, 0)], [(1, 1), (10, 0)])


async def test_an_event_is_found_by_the_key_under_which_it_took_effect(stores: Stores) -> None:
    fence, execution, other = await a_fence(stores), an_execution(), an_execution()
    events: list[Event] = [a_run(), a_run("transform"), a_run("save")]
    await stores.ledger.append(
        an_append(
            fence,
            a_stream(execution, events, keys=["first", None, "last"]),
            a_stream(other, [a_run("load")], keys=["last"]),
        )
    )

    async def step(of: ExecutionId, key: str) -> str | None:
        found = await stores.ledger_reader.find_by_key(of, key)
        return None if found is None else getattr(found.event, "step", None)

    assert await step(execution, "last") == "save"
    assert await step(other, "last") == "load"
    assert await step(other, "first") is None
    assert await step(an_execution(), "last") is None


async def test_the_outcome_of_a_run_is_that_of_its_call_or_of_its_whole_loop(
    stores: Stores,
) -> None:
    fence = await a_fence(stores)
    execution = an_execution()
    ok = ResultEnvelope(status="ok")
    item = CallDone(step="l", run_id=RunId("1"), command_id=CommandId("5"), result=ok, item_index=0)
    loop = LoopDone(step="l", run_id=RunId("1"), stats=LoopStats(total=1, success=1), result=ok)
    failed = CallError(
        step="s",
        run_id=RunId("2"),
        command_id=CommandId("6"),
        error=ErrorObject(kind="k", message="m"),
    )
    await stores.ledger.append(an_append(fence, a_stream(execution, [a_run(), item, loop, failed])))

    async def outcome(run: str) -> Event | None:
        found = await stores.ledger_reader.find_outcome(execution, run)
        return None if found is None else found.event

    assert await outcome("1") == loop
    assert await outcome("2") == failed
    assert await outcome("3") is None


async def test_many_histories_move_in_one_append(stores: Stores) -> None:
    fence = await a_fence(stores)
    executions = [an_execution() for _ in range(5)]
    await stores.ledger.append(
        an_append(fence, *(a_stream(item, [a_run(), a_run()]) for item in executions[:3]))
    )
    mixed = [a_stream(item, [a_run()], after=2) for item in executions[:3]]
    await stores.ledger.append(
        an_append(fence, *mixed, *(a_stream(item, [a_run()]) for item in executions[3:]))
    )

    heads = await stores.ledger_reader.list_heads([*executions, an_execution()])

    assert {head.execution_id: head.version for head in heads} == dict(
        zip(executions, [3, 3, 3, 1, 1], strict=True)
    )
