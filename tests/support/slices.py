"""What workers report of frames that the planner minted, and what the planner's shell gathers."""

from typing import Any

from tests.support.planning import WORKER, PlannerHarness

from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command, FrameWork, ReduceWork
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events.frame_events import FrameCommitted, FrameFailed
from noetl_contracts.events.step_events import CallDone, CallError
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests import facts
from noetl_planner.domain.loops import loop_ends
from noetl_playbook.views import loop_parts, result_envelope
from noetl_playbook.views.loop_parts import LoopPart
from noetl_playbook.views.results import LoopResult, PipelineResult, TaskResult


def work_of(command: Command) -> FrameWork:
    assert isinstance(command.work, FrameWork)
    return command.work


def an_error(kind: str = "transform", message: str = "boom") -> ErrorObject:
    return ErrorObject(kind=kind, code=kind.upper(), message=message)


def frame_done(command: Command, **changes: Any) -> facts.FrameClosed:
    """Report that a frame ran, every row of it unless told otherwise."""
    work = command.work
    assert isinstance(work, FrameWork | ReduceWork)
    index = work.frame_index if isinstance(work, FrameWork) else work.level
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="noop", raw=1)}, last="t")
    values: dict[str, Any] = {
        "command_id": command.command_id,
        "attempt": command.attempt,
        "worker_id": WORKER,
        "stage_id": work.stage_id,
        "frame_id": work.frame_id,
        "slot": work.unit,
        "frame_index": index,
        "row_count": work.end - work.start,
        "result": ResultEnvelope(
            status="ok", context=result_envelope.build_inline_context(pipeline_result)
        ),
    }
    return facts.FrameClosed(**{**values, **changes})


def frame_failed(command: Command, *, rows: int | None = None, kind: str = "transform") -> Any:
    """Report that rows of a frame failed, all of them unless told otherwise."""
    work = command.work
    assert isinstance(work, FrameWork | ReduceWork)
    count = work.end - work.start if rows is None else rows
    return frame_done(command, rows_failed=count, error=an_error(kind), result=None)


def lost(command: Command, *, is_release: bool = False) -> facts.CommandLost:
    return facts.CommandLost(
        command_id=command.command_id,
        attempt=command.attempt,
        reason="redelivered",
        is_release=is_release,
    )


def item_failed(command: Command, message: str = "boom") -> facts.CommandFailed:
    return facts.CommandFailed(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=WORKER,
        error=an_error(message=message),
    )


def gathered(
    harness: PlannerHarness, results: list[Any] | None = None, *, run_id: str | None = None
) -> facts.ItemsCollected:
    """Gather a loop's outcome as the shell does, its parts kept beside the counters."""
    run_id = run_id or _asked(harness)
    run = next(item for item in harness.state.runs.values() if item.run_id == run_id)
    assert run.loop is not None
    stage = harness.state.stages.get(run.loop.stage_id or "")  # type: ignore[call-overload]  # an id or nothing
    fanin = {
        **loop_ends.build_fanin_counters(run.loop),
        **loop_parts.build_parts_entry(_parts(harness, run_id)),
    }
    stats = codec.to_builtins(loop_ends.count_loop_stats(run.loop, stage))
    loop_result = LoopResult(results=results or [], stats=stats, fanin=fanin)
    return facts.ItemsCollected(
        run_id=run_id,
        result=ResultEnvelope(
            status="ok", context=result_envelope.build_inline_context(loop_result)
        ),
    )


def level_gathered(harness: PlannerHarness, *, run_id: str | None = None) -> facts.PartsCollected:
    """Gather the outputs of a level of a reduce as the shell does."""
    run_id = run_id or _asked(harness)
    run = next(item for item in harness.state.runs.values() if item.run_id == run_id)
    assert run.loop is not None
    found = [
        codec.to_builtins(LoopPart(index=event.slot, key=str(event.slot), result=event.result))
        for event in harness.events("frame.committed")
        if event.stage_id == run.loop.stage_id and event.frame_index == run.loop.level
    ]
    data = codec.encode_json(sorted(found, key=lambda part: int(part["index"])))
    harness.loaded[codec.digest_hex(data)] = codec.decode_json(data)
    reference = parts_ref(data, rows=len(found))
    return facts.PartsCollected(
        run_id=run_id, level=run.loop.level, parts_ref=reference, parts=len(found)
    )


def _asked(harness: PlannerHarness) -> str:
    assert harness.last is not None
    (run_id,) = harness.last.to_collect
    return run_id


def parts_ref(data: bytes, *, rows: int) -> PayloadRef:
    digest = codec.digest_hex(data)
    return PayloadRef(
        uri=f"noetl://tenant/default/org/default/payloads/sha256/{digest}",
        sha256=digest,
        media_type="application/json",
        payload_bytes=len(data),
        row_count=rows,
    )


def _parts(harness: PlannerHarness, run_id: str) -> list[LoopPart]:
    loop_parts: list[LoopPart] = []
    for envelope in harness.history:
        event = envelope.event
        if isinstance(event, FrameCommitted | FrameFailed):
            stage = harness.state.stages.get(event.stage_id)
            if stage is not None and stage.run_id == run_id:
                loop_parts.append(_part(event.slot, event))
        elif isinstance(event, CallDone | CallError) and event.run_id == run_id:
            loop_parts.append(_part(event.item_index or 0, event))
    return sorted(loop_parts, key=lambda part: part.index)


def _part(index: int, event: Any) -> LoopPart:
    error = getattr(event, "error", None)
    return LoopPart(
        index=index,
        key=str(index),
        status="ok" if error is None else "error",
        result=event.result,
        error=None if error is None else codec.to_builtins(error),
    )
