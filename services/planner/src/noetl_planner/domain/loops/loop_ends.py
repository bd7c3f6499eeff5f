"""Ends of loops: counts of units, failure policies, and the outcome."""

from typing import Any

from noetl_contracts.commands.loop_collections import TakenItems
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import loop_events
from noetl_contracts.ids import StageId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.status import FrameStatus, RunStatus, StageStatus
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import RunOutcome
from noetl_planner.domain.loops import reruns
from noetl_planner.domain.steps import children, commands, policies
from noetl_replay.state import LoopState, RunState, StageState


def count_loop_stats(
    loop: LoopState, stage: StageState | None = None, takeover: TakenItems | None = None
) -> loop_events.LoopStats:
    """Count a loop's units as templates see them; a stage adds its frames, and those taken over."""
    about: dict[str, int] = {}
    if stage is not None:
        whole = 0 if takeover is None or takeover.frames is None else takeover.frames.whole
        about = {"frames": stage.frames + whole, "frames_failed": stage.frames_failed}
        if loop.cut is None:
            about["rows_claimed"] = stage.rows
    return loop_events.LoopStats(
        total=loop.total,
        success=loop.success,
        failed=loop.failed,
        cancelled=loop.total - loop.success - loop.failed,
        retried=loop.retried,
        **about,
    )


def build_fanin_counters(loop: LoopState) -> dict[str, Any]:
    """Show a loop's outcome counters as `fanin` (language, 7.7); a fan-out counts its shards."""
    total, done_count, failed = policies.count_loop_units(loop)
    status = "complete" if done_count == total else "partial"
    if failed and not done_count:
        status = "failed"
    return {
        "status": status,
        "total": total,
        "done": done_count,
        "succeeded": done_count,
        "success": done_count,
        "failed": failed,
        "cancelled": total - done_count - failed,
        "retried": loop.retried,
        "ratio": done_count / total if total else 1,
        "loop_id": loop.run_id,
        "step": loop.step,
    }


def end_loop(
    draft: DecisionDraft, run: RunState, result: ResultEnvelope, *, error: ErrorObject | None = None
) -> RunOutcome:
    """End a loop with its result: its stage closes, its outcome is judged unless it has failed."""
    loop = get_loop(run)
    stage = draft.state.stages.get(loop.stage_id) if loop.stage_id is not None else None
    stats = count_loop_stats(loop, stage, reruns.find_taken_items(draft.state, run))
    error = error or policies.find_loop_failure(draft.program.steps[run.step], loop, stats)
    if stage is not None:
        close_stage(draft, stage, StageStatus.FAILED if error else StageStatus.COMPLETED)
    if loop.mode == "fanout" and loop.stage_id is not None:
        _complete_fanin(draft, loop)
    about: dict[str, Any] = {
        "step": run.step,
        "run_id": run.run_id,
        "stats": stats,
        "result": result,
        "stage_id": loop.stage_id,
    }
    if error is None:
        draft.append_event(loop_events.LoopDone(**about))
        return RunOutcome(status=RunStatus.COMPLETED)
    draft.append_event(loop_events.LoopFailed(error=error, **about))
    return RunOutcome(status=RunStatus.FAILED, error=error)


def find_parent_stage(draft: DecisionDraft) -> StageId | None:
    """Return the stage of the parent execution whose frame called this one, if one did."""
    parent = draft.state.parent
    return parent.stage_id if parent is not None else None


def close_stage(draft: DecisionDraft, stage: StageState, status: StageStatus) -> None:
    """Close a stage; frames that are still open are abandoned."""
    for frame_state in list(draft.state.frames.values()):
        if (
            frame_state.stage_id == stage.stage_id
            and frame_state.status is not FrameStatus.ABANDONED
        ):
            commands.abandon_frame(draft, frame_state, "cancelled")
    draft.append_event(
        loop_events.StageClosed(
            stage_id=stage.stage_id,
            run_id=stage.run_id,
            step=stage.step,
            status=status,
            frames=stage.frames,
            rows=stage.rows,
            frames_failed=stage.frames_failed,
        )
    )


def cancel_units_in_flight(draft: DecisionDraft, run: RunState, reason: str) -> None:
    """Call off a loop's units in flight although the loop itself goes on to its end."""
    for command_state in [
        command for command in draft.state.commands.values() if command.run_id == run.run_id
    ]:
        draft.to_stop[command_state.command_id] = None
        commands.cancel_command(draft, command_state, reason, item_index=command_state.item_index)
        children.cancel_child_of_command(draft, command_state, reason=reason)


def get_loop(run: RunState) -> LoopState:
    """Return the loop of a run that has one."""
    assert run.loop is not None, "only loop runs come here"
    return run.loop


def _complete_fanin(draft: DecisionDraft, loop: LoopState) -> None:
    fanin_counters = build_fanin_counters(loop)
    assert loop.stage_id is not None, "a fan-out has a stage"
    draft.append_event(
        loop_events.LoopFaninCompleted(
            step=loop.step,
            run_id=loop.run_id,
            stage_id=loop.stage_id,
            status=fanin_counters["status"],
            total=fanin_counters["total"],
            done=fanin_counters["done"],
            failed=fanin_counters["failed"],
            cancelled=fanin_counters["cancelled"],
            retried=fanin_counters["retried"],
        )
    )
