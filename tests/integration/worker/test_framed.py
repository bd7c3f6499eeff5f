# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Frames that the planner minted, and groups of parts, as a worker runs them."""

from typing import Any

import pytest
from tests.support.working import (
    ORGANIZATION,
    STAGE,
    TENANT,
    Bench,
    command_of,
    step_of,
)

from noetl_contracts import codec, ids
from noetl_contracts.commands.command_work import Command, FrameWork, ItemWork, ReduceWork
from noetl_contracts.commands.loop_collections import (
    CollectionForm,
    CollectionLayout,
    ListPart,
    PartList,
)
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed, FrameClosed
from noetl_playbook.views import result_envelope
from noetl_playbook.views.loop_parts import LoopPart
from noetl_playbook.views.results import LoopResult, PipelineResult, TaskResult
from noetl_worker.runner import planner_frames

ITEMS = [{"n": number} for number in range(10)]


async def kept(worker: Bench, value: Any) -> PayloadRef:
    return await worker.payloads.put_payload(
        codec.encode_json(value),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type="application/json",
    )


def loop_of(tool: str, spec: str = "{mode: chunked}") -> dict[str, Any]:
    return step_of(
        f"""
  - step: each
    loop: {{in: "{{{{ [] }}}}", iterator: it, spec: {spec}}}
    tool: {tool}
"""
    )


async def frame_of(
    worker: Bench, step: dict[str, Any], *, start: int = 0, end: int = 10, **changes: Any
) -> Command:
    root = ids.derive_frame_id(STAGE, slot=changes.get("unit", 0), frame_index=0)
    values: dict[str, Any] = {
        "stage_id": STAGE,
        "frame_id": root,
        "root_frame_id": root,
        "unit": 0,
        "frame_index": 0,
        "attempt": 1,
        "start": start,
        "end": end,
        "total": 10,
        "collection_ref": await kept(worker, ITEMS),
    }
    return command_of(step, work=FrameWork(**{**values, **changes}))


async def closed(worker: Bench, command: Command) -> FrameClosed:
    facts = await worker.run(command)
    (found,) = [fact for fact in facts if isinstance(fact, FrameClosed)]
    assert facts[-1] == found
    return found


async def results(worker: Bench, fact: FrameClosed) -> Any:
    assert fact.result is not None
    return (await worker.value(fact.result))["results"]


async def test_a_row_body_runs_once_a_row_and_knows_its_place(worker: Bench) -> None:
    names = "'{{ [iter.it.n, iter._index, loop_index, loop.length, loop.done, loop.failed, iter._first, iter._last, iter._total, iter._key == iter._loop_id ~ \":\" ~ iter._index, frame.base_index, frame.row_count] }}'"
    step = loop_of(f"{{kind: noop, result: {names}}}")
    fact = await closed(worker, await frame_of(worker, step, start=8, end=10, done=5, failed=1))
    assert await results(worker, fact) == [
        [8, 8, 8, 10, 5, 1, False, False, 10, True, 8, 2],
        [9, 9, 9, 10, 5, 1, False, True, 10, True, 8, 2],
    ]
    assert (fact.row_count, fact.rows_failed, fact.rows_left, fact.key) == (2, 0, 0, None)


@pytest.mark.parametrize("lanes", [1, 3])
async def test_outputs_above_the_bytes_of_a_frame_wait_in_the_store(
    worker: Bench, lanes: int
) -> None:
    step = loop_of("{kind: noop, result: \"{{ 'x' * 100 ~ iter.it.n }}\"}")
    policy = {"max_bytes": 250, "row_concurrency": lanes}
    fact = await closed(worker, await frame_of(worker, step, frame=policy))
    assert await results(worker, fact) == ["x" * 100 + str(n) for n in range(10)]
    assert fact.result is not None
    assert fact.result.reference is not None
    assert fact.result.reference.row_count == 10


async def test_a_whole_frame_body_runs_once_with_the_list(worker: Bench) -> None:
    step = loop_of("{kind: noop, result: \"{{ iter.it | map(attribute='n') | sum }}\"}")
    fact = await closed(
        worker, await frame_of(worker, step, start=2, end=6, frame={"process": "frame"})
    )
    assert await results(worker, fact) == [14]
    assert fact.row_count == 4
    assert "overrun_ms" not in fact.metrics


async def test_a_whole_frame_is_never_cut_short_and_its_overrun_is_recorded(
    worker: Bench,
) -> None:
    step = loop_of('{kind: python, code: "import time\\ntime.sleep(0.05)\\nresult = 1"}')
    policy = {"process": "frame", "max_seconds": 0.001}
    fact = await closed(worker, await frame_of(worker, step, end=4, frame=policy))
    assert (fact.row_count, fact.rows_left) == (4, 0)
    assert fact.metrics["overrun_ms"] > 0


@pytest.mark.parametrize("lanes", [1, 3])
async def test_a_failed_row_leaves_its_record_and_the_others_run(worker: Bench, lanes: int) -> None:
    step = loop_of(
        "{kind: noop, spec: {policy: {rules: [{when: '{{ iter.it.n == 1 }}', then: {do: fail, message: boom}}]}}, result: '{{ iter.it.n }}'}"
    )
    fact = await closed(
        worker, await frame_of(worker, step, end=4, frame={"row_concurrency": lanes})
    )
    found = await results(worker, fact)
    assert [item if isinstance(item, int) else item["error"]["message"] for item in found] == [
        0,
        "boom",
        2,
        3,
    ]
    assert (fact.row_count, fact.rows_failed) == (4, 1)
    assert fact.error is not None


async def test_rows_see_the_writes_of_earlier_ones_in_the_same_frame(worker: Bench) -> None:
    step = loop_of(
        "{kind: noop, result: '{{ ctx.seen | default(0) }}', set: {ctx.seen: '{{ ctx.seen | default(0) + 1 }}'}}"
    )
    fact = await closed(worker, await frame_of(worker, step, end=3))
    assert await results(worker, fact) == [0, 1, 2]
    assert fact.patch == {"seen": 3}


async def test_rows_that_its_time_did_not_suffice_for_are_left_and_never_claimed(
    worker: Bench,
) -> None:
    step = loop_of("{kind: noop, result: '{{ iter.it.n }}'}")
    fact = await closed(worker, await frame_of(worker, step, frame={"max_seconds": 0}))
    assert (fact.row_count, fact.rows_left) == (1, 9)
    assert await results(worker, fact) == [0]
    whole = await closed(
        worker, await frame_of(worker, step, frame={"max_seconds": 0}, is_shard=True)
    )
    assert (whole.row_count, whole.rows_left) == (10, 0)


async def test_a_slice_reads_only_the_parts_that_hold_it(worker: Bench) -> None:
    parts = [
        ListPart(start=start, end=start + 5, ref=await kept(worker, ITEMS[start : start + 5]))
        for start in (0, 5)
    ]
    manifest = await kept(worker, PartList(total=10, parts=parts))
    step = loop_of("{kind: noop, result: '{{ iter.it.n }}'}")
    across = await frame_of(
        worker, step, start=3, end=7, collection_ref=manifest, form=CollectionForm.PARTS
    )
    assert await results(worker, await closed(worker, across)) == [3, 4, 5, 6]
    await worker.payloads.delete_payload(parts[1].ref)
    first = await frame_of(
        worker, step, start=0, end=5, collection_ref=manifest, form=CollectionForm.PARTS
    )
    assert await results(worker, await closed(worker, first)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("form", [CollectionForm.PIPELINE, CollectionForm.LOOP])
async def test_rows_of_a_step_result_are_read_where_they_are_kept(
    worker: Bench, form: CollectionForm
) -> None:
    rows = {"rows": ITEMS, "columns": ["n"], "row_count": 10}
    shape: Any = LoopResult(results=ITEMS, stats={"total": 10})
    if form is CollectionForm.PIPELINE:
        shape = PipelineResult(tasks={"t": TaskResult(kind="postgres", raw=rows)}, last="t")
    reference = await kept(worker, shape)
    step = loop_of("{kind: noop, result: '{{ iter.it.n }}'}")
    fact = await closed(
        worker, await frame_of(worker, step, start=4, end=6, collection_ref=reference, form=form)
    )
    assert await results(worker, fact) == [4, 5]
    item = command_of(
        loop_of("{kind: noop, result: '{{ iter.it.n }}'}", "{mode: parallel}"),
        work=ItemWork(index=7, total=10, collection_ref=reference, form=form),
    )
    facts = await worker.run(item)
    assert isinstance(facts[-1], CommandCompleted)
    assert await worker.value(facts[-1].result) == 7


async def test_a_shard_is_named_by_its_key_and_its_items_keep_their_places(worker: Bench) -> None:
    layout = await kept(worker, CollectionLayout(offsets=[0, 2, 10], order=[4, 9, *range(8)]))
    spec = "{mode: fanout, fanout: {partitions: 2, key: 'c-{{ iter.it.n }}'}}"
    step = loop_of(
        "{kind: noop, result: '{{ [iter._index, iter._key, iter._shard_index, iter._shard_attempt] }}'}",
        spec,
    )
    command = await frame_of(
        worker, step, end=2, layout_ref=layout, is_shard=True, unit=3, attempt=2
    )
    fact = await closed(worker, command)
    assert fact.key == "c-0"
    assert await results(worker, fact) == [[4, "c-0:0", 3, 2], [9, "c-0:1", 3, 2]]
    alone = await frame_of(worker, step, end=1, is_shard=True)
    assert await results(worker, await closed(worker, alone)) == [[0, "c-0", 0, 1]]


LOCAL = {"inside": {"in_flight": 2, "units": 2, "is_shard": True}}


@pytest.mark.parametrize("policy", [{"is_shard": True}, {"frame": LOCAL}])
async def test_a_shard_whose_key_cannot_be_rendered_fails_by_the_fields_name(
    worker: Bench, policy: dict[str, Any]
) -> None:
    spec = "{mode: fanout, fanout: {partitions: 2, key: '{{ 1 // iter.it.n }}'}}"
    step = loop_of("{kind: noop}", spec)
    facts = await worker.run(await frame_of(worker, step, end=2, **policy))
    assert isinstance(facts[-1], CommandFailed)
    assert facts[-1].error.kind == "template"
    assert "loop.spec.fanout.key" in facts[-1].error.message


async def test_a_frame_without_its_collection_fails_as_a_command(worker: Bench) -> None:
    step = loop_of("{kind: noop}")
    facts = await worker.run(await frame_of(worker, step, end=11))
    assert isinstance(facts[-1], CommandFailed)
    assert facts[-1].error.kind == "internal"


def part(index: int, value: Any, **changes: Any) -> LoopPart:
    result = PipelineResult(tasks={"t": TaskResult(kind="noop", raw=value)}, last="t")
    envelope = ResultEnvelope(status="ok", context=result_envelope.build_inline_context(result))
    return LoopPart(**{"index": index, "key": str(index), "result": envelope, **changes})


async def test_a_reduce_body_sees_its_parts_and_loads_what_it_touches(worker: Bench) -> None:
    stored = await kept(worker, LoopResult(results=[7]))
    by_reference = ResultEnvelope(
        status="ok",
        reference=stored,
        context=result_envelope.build_reference_context(LoopResult(), {}),
    )
    listed = [
        part(0, 1),
        part(1, 2),
        part(2, None, result=by_reference, is_single=True, row_count=3),
    ]
    step = step_of(
        """
  - step: total
    reduce: {from: each, iterator: parts}
    tool: {kind: python, input: {parts: "{{ iter.parts }}", f: "{{ fanin.status }}", n: "{{ frame.row_count }}"},
           code: "result = [[p['index'], p['key'], p['status'], p['data'], p['row_count'], p['ref'] is None] for p in parts] + [f, n]"}
  - {step: each, loop: {in: "{{ [] }}", iterator: it}, tool: {kind: noop}}
"""
    )
    work = ReduceWork(
        stage_id=STAGE,
        frame_id=ids.derive_frame_id(STAGE, slot=0, frame_index=0),
        unit=0,
        level=0,
        attempt=1,
        start=1,
        end=3,
        parts_ref=await kept(worker, listed),
        fanin={"status": "complete"},
    )
    fact = await closed(worker, command_of(step, work=work))
    assert fact.error is None
    assert fact.result is not None
    assert await worker.value(fact.result) == [
        [1, "1", "ok", 2, None, True],
        [2, "2", "ok", 7, 3, False],
        "complete",
        2,
    ]


async def test_a_reduce_body_that_fails_fails_its_frame(worker: Bench) -> None:
    step = step_of(
        """
  - step: total
    reduce: {from: each, iterator: parts}
    tool: {kind: noop, result: "{{ iter.parts[9].data }}"}
  - {step: each, loop: {in: "{{ [] }}", iterator: it}, tool: {kind: noop}}
"""
    )
    work = ReduceWork(
        stage_id=STAGE,
        frame_id=ids.derive_frame_id(STAGE, slot=0, frame_index=0),
        unit=0,
        level=0,
        attempt=1,
        start=0,
        end=1,
        parts_ref=await kept(worker, [part(0, 1)]),
    )
    fact = await closed(worker, command_of(step, work=work))
    assert fact.error is not None
    assert (fact.error.kind, fact.rows_failed) == ("template", 1)


async def test_items_of_a_whole_number_need_no_payload(worker: Bench) -> None:
    step = loop_of(
        "{kind: noop, result: '{{ [iter.it, loop.done, loop.failed] }}'}", "{mode: parallel}"
    )
    work = ItemWork(index=5, total=9, form=CollectionForm.RANGE, done=4, failed=1)
    facts = await worker.run(command_of(step, work=work))
    assert isinstance(facts[-1], CommandCompleted)
    assert await worker.value(facts[-1].result) == [5, 4, 1]


async def test_too_many_failures_cancel_the_rows_in_flight(worker: Bench) -> None:
    step = loop_of(
        """[
      {kind: python, input: {n: "{{ iter.it.n }}"}, code: "import time\\nif n == 0:\\n    raise ValueError('boom')\\ntime.sleep(60)"}]"""
    )
    policy = {"row_concurrency": 2, "failed_max": 0}
    fact = await closed(worker, await frame_of(worker, step, end=4, frame=policy))
    found = await results(worker, fact)
    assert [None if item is None else item["error"]["message"] for item in found] == [
        found[0]["error"]["message"],
        None,
        None,
        None,
    ]
    assert (fact.row_count, fact.rows_failed, fact.rows_left) == (1, 1, 0)


async def test_a_large_result_is_cut_once_and_then_read_part_by_part(
    worker: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner_frames, "WHOLE_BYTES_MAX", 1024)
    rows = [{"n": number, "text": "x" * 1000} for number in range(2_000)]
    shape = PipelineResult(
        tasks={"t": TaskResult(kind="postgres", raw={"rows": rows, "columns": ["n"]})}, last="t"
    )
    reference = await kept(worker, shape)
    step = loop_of("{kind: noop, result: '{{ iter.it.n }}'}")
    for start in (0, 1_990):
        command = await frame_of(
            worker,
            step,
            start=start,
            end=start + 2,
            total=2_000,
            collection_ref=reference,
            form=CollectionForm.PIPELINE,
        )
        assert await results(worker, await closed(worker, command)) == [start, start + 1]
        await worker.payloads.delete_payload(reference)
    name = f"slices/{reference.sha256}"
    manifest = await worker.payloads.find_named(
        name, tenant_id=TENANT, organization_id=ORGANIZATION
    )
    assert manifest is not None
    assert len(codec.decode_as(manifest, PartList).parts) > 3
