"""Facts about commands: taken, heard of, ended, lost."""

from typing import assert_never

from msgspec import UNSET

from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import command_events, execution_events, step_events
from noetl_contracts.ids import WorkerId
from noetl_contracts.requests import facts
from noetl_contracts.status import CommandStatus, FrameStatus, RunStatus
from noetl_planner.domain import executions
from noetl_planner.domain.decision import ctx_writes
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal, RunOutcome
from noetl_planner.domain.loops import (
    batches,
    cursors,
    frames,
    items,
    loop_kinds,
    reduce_stages,
    streams,
)
from noetl_planner.domain.steps import command_placement, commands, increments, policies
from noetl_replay.state import CommandState, FrameState, RunState

# A slot that makes no progress at all is lost this often before its loop gives it up.
SLOT_LOSSES_MAX = 10


def note_command(
    draft: DecisionDraft, fact: facts.CommandStarted | facts.CommandHeartbeat | facts.CommandStopped
) -> None:
    """Record that a worker took, holds, or stopped a command."""
    kind = str(fact.__struct_config__.tag)
    command_state = commands.find_live_command(
        draft, fact.command_id, fact.attempt, fact=kind, worker_id=fact.worker_id
    )
    if command_state is None:
        _stop_late_command(draft, fact)
        return
    if command_state.status is CommandStatus.PARKED:
        return
    _repeat_hints(draft, command_state)
    match fact:
        case facts.CommandStarted():
            commands.start_command(
                draft,
                command_state,
                fact.worker_id,
                worker_locator=fact.worker_locator,
                locality=fact.locality,
                max_distance=fact.max_distance,
            )
            command_placement.grant_offer(draft, command_state, fact.worker_id)
        case facts.CommandHeartbeat():
            commands.record_heartbeat(draft, command_state, fact.worker_id)
        case facts.CommandStopped():
            _handle_stopped(draft, command_state)
        case _:
            assert_never(fact)


def _repeat_hints(draft: DecisionDraft, command_state: CommandState) -> None:
    """Tell a worker again what it may have missed: hints get lost, and commands come late."""
    streams.report_accepted_chunks(draft, draft.state.runs[command_state.run_id])
    if draft.state.cancelling_at is not None:
        draft.to_stop[command_state.command_id] = None
    elif command_state.slot is not None and (
        draft.state.paused_at is not None
        or cursors.is_surplus_slot(draft.state.runs[command_state.run_id], command_state.slot)
    ):
        draft.to_pause[command_state.command_id] = None


def _stop_late_command(
    draft: DecisionDraft, fact: facts.CommandStarted | facts.CommandHeartbeat | facts.CommandStopped
) -> None:
    is_gone = fact.command_id not in draft.state.commands
    if is_gone and not isinstance(fact, facts.CommandStopped):
        draft.to_stop[fact.command_id] = None


def _handle_stopped(draft: DecisionDraft, command_state: CommandState) -> None:
    if draft.state.cancelling_at is None:
        # A hint for an earlier attempt met this one: nobody wanted it to stop.
        lose_command(
            draft,
            facts.CommandLost(
                command_id=command_state.command_id,
                attempt=command_state.attempt,
                reason="",
                is_release=True,
            ),
        )
        return
    commands.cancel_command(draft, command_state, executions.REASON)
    executions.settle_cancellation(draft)


def note_changed_files(draft: DecisionDraft, fact: facts.FilesChanged) -> None:
    """Record how long the journal of the execution's files is; old news changes nothing."""
    if draft.state.version and fact.entries > draft.state.file_entries:
        draft.append_event(execution_events.FilesChanged(entries=fact.entries))


def end_command(draft: DecisionDraft, fact: facts.CommandCompleted | facts.CommandFailed) -> None:
    """Accept the outcome of a step or item, or the failure of a slot."""
    kind = str(fact.__struct_config__.tag)
    command_state = commands.find_live_command(
        draft, fact.command_id, fact.attempt, fact=kind, worker_id=fact.worker_id
    )
    if command_state is None or command_state.status is CommandStatus.PARKED:
        return
    if fact.item_index is not UNSET:
        if batches.end_item(draft, command_state, fact):
            _continue_batch_loop(draft, command_state)
        return
    if command_state.batch is not UNSET and isinstance(fact, facts.CommandCompleted):
        # Of a batch each item ends by itself.
        return
    if isinstance(fact, facts.CommandFailed) and command_state.frame_id is not None:
        fail_unit(draft, command_state, fact)
        return
    if isinstance(fact, facts.CommandFailed):
        fail_command(draft, command_state, fact.error, worker_id=fact.worker_id, fact=fact)
        return
    if command_state.frame_id is not None or command_state.slot is not None:
        # Frames and slots end by facts of their own; this fact does not say what the command had.
        return
    try:
        written = ctx_writes.render_ctx_writes(draft, command_state, fact)
        state_change = increments.judge_proposal(draft, command_state, fact)
    except Refusal as refusal:
        fail_command(draft, command_state, refusal.error, worker_id=fact.worker_id)
        return
    patch, refused = ctx_writes.store_ctx_patch(draft, written, step=command_state.step)
    if refused is not None:
        fail_command(draft, command_state, refused, worker_id=fact.worker_id)
        return
    draft.append_event(
        command_events.CommandCompleted(
            command_id=command_state.command_id,
            run_id=command_state.run_id,
            step=command_state.step,
            attempt=command_state.attempt,
            worker_id=fact.worker_id,
            metrics=fact.metrics,
            tasks=fact.tasks,
        )
    )
    draft.append_event(
        step_events.CallDone(
            step=command_state.step,
            run_id=command_state.run_id,
            command_id=command_state.command_id,
            result=fact.result,
            patch=patch,
            item_index=command_state.item_index,
            notes=fact.notes,
            tries=fact.tries,
        )
    )
    outcome = RunOutcome(status=RunStatus.COMPLETED, state_change=state_change)
    _continue_after_command(draft, command_state, outcome)


def return_items(draft: DecisionDraft, fact: facts.ItemsReturned) -> None:
    """Accept what a worker gives back of a batch of items."""
    command_state = batches.return_items(draft, fact)
    if command_state is not None:
        _continue_batch_loop(draft, command_state)


def _continue_batch_loop(draft: DecisionDraft, command_state: CommandState) -> None:
    """Go on with a loop whose batch has ended: until then there is nothing more to issue."""
    if not command_state.batch:
        _continue_after_command(draft, command_state, None)


def fail_command(
    draft: DecisionDraft,
    command_state: CommandState,
    error: ErrorObject,
    *,
    worker_id: WorkerId | None,
    fact: facts.CommandFailed | None = None,
) -> None:
    """End a command as failed, and go on from there; writes that do not fit are left out."""
    if command_state.batch is not UNSET:
        batches.fail_batch(draft, command_state, error, worker_id=worker_id)
        commands.fail_command(draft, command_state, error, worker_id=worker_id)
        _continue_after_command(draft, command_state, None)
        return
    patch, _ = ctx_writes.store_ctx_patch(
        draft, fact.patch if fact is not None else {}, step=command_state.step
    )
    tasks = fact.tasks if fact is not None else {}
    commands.fail_command(draft, command_state, error, worker_id=worker_id, tasks=tasks)
    if command_state.slot is None:
        draft.append_event(
            step_events.CallError(
                step=command_state.step,
                run_id=command_state.run_id,
                command_id=command_state.command_id,
                error=error,
                result=fact.result if fact is not None else None,
                patch=patch,
                item_index=command_state.item_index,
            )
        )
    _continue_after_command(draft, command_state, RunOutcome(status=RunStatus.FAILED, error=error))


def _continue_after_command(
    draft: DecisionDraft, command_state: CommandState, ended: RunOutcome | None
) -> None:
    run = draft.state.runs.get(command_state.run_id)
    if run is None or draft.state.cancelling_at is not None:
        executions.settle_cancellation(draft)
        return
    if streams.is_stream_run(run):
        _end_stream(draft, streams.continue_stream(draft, run))
        return
    outcome = ended
    if command_state.slot is not None:
        outcome = cursors.continue_cursor_loop(draft, run)
    elif command_state.item_index is not None:
        outcome = items.continue_item_loop(draft, run)
    if outcome is not None:
        executions.end_run(
            draft, run, outcome.status, error=outcome.error, state_change=outcome.state_change
        )
        executions.advance_execution(draft)


def receive_chunk(draft: DecisionDraft, fact: facts.ChunkEmitted) -> None:
    """Accept the next chunk of a stream; one that came before, or too early, changes nothing."""
    command_state = commands.find_live_command(
        draft, fact.command_id, fact.attempt, fact="chunk_emitted", worker_id=fact.worker_id
    )
    if command_state is None or command_state.status is CommandStatus.PARKED:
        return
    if draft.state.cancelling_at is not None:
        draft.to_stop[command_state.command_id] = None
        return
    _end_stream(draft, streams.receive_chunk(draft, command_state, fact))


def _end_stream(draft: DecisionDraft, ended: streams.StreamEnd | None) -> None:
    if ended is not None:
        executions.end_run(draft, ended.run, ended.outcome.status, error=ended.outcome.error)
    executions.advance_execution(draft)


def accept_collected_items(draft: DecisionDraft, fact: facts.ItemsCollected) -> None:
    """Accept the gathered results of a loop; an epoch that is over stays over."""
    run = next(
        (run_state for run_state in draft.state.runs.values() if run_state.run_id == fact.run_id),
        None,
    )
    if run is None or run.loop is None or run.loop.is_finished:
        return
    if run.feed is not None:
        _end_stream(draft, streams.end_collected_target(draft, run, fact))
        return
    outcome = loop_kinds.end_collected_loop(draft, run, fact)
    executions.end_run(draft, run, outcome.status, error=outcome.error)
    executions.advance_execution(draft)


def accept_collected_parts(draft: DecisionDraft, fact: facts.PartsCollected) -> None:
    """Accept the gathered outputs of one level of a reduce stage."""
    reduce_stages.open_next_level(draft, fact)


def lose_command(draft: DecisionDraft, fact: facts.CommandLost) -> None:
    """Send a lost command again, or end it when its attempts are used up."""
    command_state = draft.state.commands.get(fact.command_id)
    if command_state is None or command_state.attempt != fact.attempt:
        return
    if command_state.command_id in draft.state.held or command_state.status is CommandStatus.PARKED:
        # Nobody holds a held or parked command, so nobody can have lost it.
        return
    if draft.state.cancelling_at is not None:
        _handle_stopped(draft, command_state)
        return
    if command_state.slot is not None:
        _lose_slot(draft, command_state, fact)
        return
    if command_state.frame_id is not None:
        lose_unit(draft, command_state, fact, _loss_reason(fact))
        return
    if fact.is_release or command_state.losses + 1 < command_state.attempts_max:
        commands.reissue_command(draft, command_state, _loss_reason(fact))
        return
    error = _build_worker_lost_error(command_state, fact.reason)
    if command_state.batch is UNSET:
        fail_command(draft, command_state, error, worker_id=command_state.worker_id)
    elif batches.lose_batch(draft, command_state, error=error):
        commands.reissue_command(draft, command_state, command_events.RELEASED)
    else:
        _continue_after_command(draft, command_state, None)


def withdraw_untaken_offers(draft: DecisionDraft) -> None:
    """Give to everybody what the worker that it was offered to has not taken in time.

    Nobody had it, so nobody lost it: a frame keeps its own attempt.
    """
    for command_id in command_placement.list_untaken_commands(draft):
        command_state = draft.state.commands[command_id]
        if command_state.target is not None:
            draft.withdrawn.append(command_state.target)
        commands.reissue_command(draft, command_state, command_events.NOT_TAKEN)


def _lose_slot(draft: DecisionDraft, command_state: CommandState, fact: facts.CommandLost) -> None:
    run = draft.state.runs[command_state.run_id]
    loop, stage = cursors.get_loop_and_stage(draft, run)
    slot = loop.slots[command_state.slot or 0]
    open_frame = draft.state.frames.get(slot.open_frame_id) if slot.open_frame_id else None
    if not fact.is_release and command_state.losses + 1 >= max(
        command_state.attempts_max, SLOT_LOSSES_MAX
    ):
        fail_command(
            draft,
            command_state,
            _build_worker_lost_error(command_state, fact.reason),
            worker_id=command_state.worker_id,
        )
        return
    if fact.is_release and open_frame is None and cursors.is_surplus_slot(run, command_state.slot):
        _retire_slot(draft, command_state)
        return
    if open_frame is not None and open_frame.status is not FrameStatus.ABANDONED:
        _abandon_lost_frame(
            draft, open_frame, _loss_reason(fact), policies.get_frame_attempts_max(stage)
        )
    commands.reissue_command(draft, command_state, _loss_reason(fact))


def _retire_slot(draft: DecisionDraft, command_state: CommandState) -> None:
    """End a slot that its loop has no more use for; others claim what it would have."""
    run = draft.state.runs[command_state.run_id]
    worker_id = command_state.worker_id or WorkerId("")
    commands.complete_command(draft, command_state, worker_id=worker_id, metrics={}, is_dry=True)
    outcome = cursors.continue_cursor_loop(draft, run)
    if outcome is not None:
        executions.end_run(draft, run, outcome.status, error=outcome.error)
        executions.advance_execution(draft)


def _abandon_lost_frame(
    draft: DecisionDraft, open_frame: FrameState, reason: str, attempts_max: int
) -> None:
    commands.abandon_frame(draft, open_frame, reason)
    if open_frame.attempts < attempts_max:
        return
    frames.fail_exhausted_frame(draft, open_frame, reason)


def _loss_reason(fact: facts.CommandLost) -> str:
    return command_events.RELEASED if fact.is_release else fact.reason


def _build_worker_lost_error(command_state: CommandState, reason: str) -> ErrorObject:
    unit, times = command_state.unit, command_state.attempt
    if command_state.batch is not UNSET:
        unit, times = f"item-{command_state.batch[0]}", command_state.losses + 1
    return ErrorObject(
        kind=command_events.WORKER_LOST,
        code="WORKER_LOST",
        step=command_state.step,
        attempt=command_state.attempt,
        message=f"step {command_state.step!r} ({unit}) was dispatched {times} times and lost each "
        f"time: {reason}",
    )


def close_unit(draft: DecisionDraft, command_state: CommandState, fact: facts.FrameClosed) -> None:
    """Handle `FrameClosed` of a frame or a reduce group: record its outcome, continue its loop."""
    run = _find_run(draft, command_state)
    if run is None:
        return
    apply_fact = reduce_stages.close_group if _is_reduce(run) else frames.close_frame
    if apply_fact(draft, run, command_state, fact):
        _continue_unit_loop(draft, run)


def fail_unit(draft: DecisionDraft, command_state: CommandState, fact: facts.CommandFailed) -> None:
    """Handle `CommandFailed` of a frame or a reduce group: mark it failed, continue its loop."""
    run = _find_run(draft, command_state)
    if run is None:
        return
    apply_fact = reduce_stages.fail_group if _is_reduce(run) else frames.fail_frame
    if apply_fact(draft, run, command_state, fact):
        _continue_unit_loop(draft, run)


def lose_unit(
    draft: DecisionDraft, command_state: CommandState, fact: facts.CommandLost, reason: str
) -> None:
    """Handle `CommandLost` of a frame or a reduce group: retry or fail it, continue its loop."""
    run = _find_run(draft, command_state)
    if run is None:
        return
    apply_fact = reduce_stages.lose_group if _is_reduce(run) else frames.lose_frame
    if apply_fact(draft, run, command_state, reason, is_release=fact.is_release):
        _continue_unit_loop(draft, run)


def _find_run(draft: DecisionDraft, command_state: CommandState) -> RunState | None:
    return draft.state.runs.get(command_state.run_id)


def _is_reduce(run: RunState) -> bool:
    return run.loop is not None and run.loop.mode == "reduce"


def _continue_unit_loop(draft: DecisionDraft, run: RunState) -> None:
    if draft.state.cancelling_at is not None:
        executions.settle_cancellation(draft)
        return
    outcome = loop_kinds.continue_loop(draft, run)
    if outcome is not None:
        executions.end_run(draft, run, outcome.status, error=outcome.error)
        executions.advance_execution(draft)
