"""The fact that ends a frame, for all kinds of frames."""

from typing import Any

from msgspec import structs

from noetl_chassis.observability import instruments, names
from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.loop_collections import UnitsEnd
from noetl_contracts.commands.waits import Resume
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests.facts import FrameClosed
from noetl_worker.commands.command_context import CommandContext
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.domain.frames import Frame, FrameOutcome, FrameResult
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline
from noetl_worker.runner.local_loop import run_local_loop
from noetl_worker.runner.transactional_frame import run_frame_once

OVERSIZE_NOTE = "frame_oversize"


def build_frame_closed(
    command: Command,
    services: CommandServices,
    frame: Frame,
    result: FrameResult,
    envelope: ResultEnvelope | None,
    units: UnitsEnd | None = None,
) -> FrameClosed:
    """Say what became of a frame's rows, and measure it."""
    outcome = "failed" if result.rows_failed else "committed"
    instruments.add_to_counter(names.FRAMES_ENDED, labels={names.OUTCOME: outcome})
    instruments.record_measurement(names.FRAME_DURATION, result.duration_s)
    notes = _list_notes(frame)
    return FrameClosed(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=services.worker_id,
        stage_id=frame.stage_id,
        frame_id=frame.frame_id,
        slot=frame.slot,
        frame_index=frame.frame_index,
        row_count=len(frame.rows) - len(result.remaining) - result.rows_cancelled,
        rows_failed=result.rows_failed,
        error=result.error,
        result=envelope,
        patch=result.patch,
        metrics=_build_metrics(frame, result, notes),
        tasks=result.metrics,
        parent_frame_id=frame.parent_frame_id,
        rows_left=len(result.remaining),
        key=frame.sliced.shard_key if frame.sliced is not None else None,
        notes=notes,
        units=units,
    )


def _list_notes(frame: Frame) -> list[str]:
    is_claim = frame.sliced is None and frame.parent_frame_id is None
    return [OVERSIZE_NOTE] if is_claim and len(frame.rows) > frame.policy.max_rows else []


def _build_metrics(frame: Frame, result: FrameResult, notes: list[str]) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "rows_done": result.rows_done,
        "duration_ms": round(result.duration_s * 1000),
    }
    if notes:
        metrics["notes"] = notes
    over_s = result.duration_s - frame.policy.max_seconds
    if frame.policy.process == "frame" and over_s > 0:
        # A body that takes the whole frame is never cut short.
        metrics["overrun_ms"] = round(over_s * 1000)
    if result.remaining:
        metrics["rows_left"] = len(result.remaining)
    return metrics


async def run_recorded_frame(
    frame: Frame,
    *,
    block: CompiledPipeline,
    context: CommandContext,
    services: CommandServices,
    may_leave_rows: bool,
    resume: Resume | None = None,
) -> FrameOutcome:
    """Run a frame, or those that it is cut into, then store what it gives.

    `resume` is how a wait of one of its rows ended. Raises `ToolFailure`, or `FrameParked` when a
    row waits.
    """
    if frame.policy.inside is not None:
        result, _ = await run_local_loop(frame, block=block, context=context, services=services)
    else:
        result = await run_frame_once(
            frame,
            block=block,
            context=context,
            services=services,
            may_leave_rows=may_leave_rows,
            resume=resume,
        )
    return await _store_outcome(result, block, services)


async def run_empty_frame(block: CompiledPipeline, services: CommandServices) -> FrameOutcome:
    """Give what a frame without rows gives."""
    result = FrameResult(
        rows_done=0,
        rows_failed=0,
        error=None,
        patch={},
        results=[],
        remaining=[],
        duration_s=0.0,
    )
    return await _store_outcome(result, block, services)


async def _store_outcome(
    result: FrameResult, block: CompiledPipeline, services: CommandServices
) -> FrameOutcome:
    loop = block.step.loop
    collects = loop is not None and loop.spec.collect != "none"
    envelope = result.kept
    if envelope is None and collects:
        envelope = await services.keeper.store_row_results(result.results)
    patch = await services.keeper.store_patch(result.patch)
    return FrameOutcome(
        result=structs.replace(result, patch=patch, results=[], remaining=[], kept=None),
        rows_left=len(result.remaining),
        envelope=envelope,
    )
