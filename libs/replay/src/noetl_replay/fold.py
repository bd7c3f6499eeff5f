"""The one fold: what each event means. Planner, projector, replay and audit all use it."""

from collections.abc import Iterable
from typing import assert_never

from msgspec import UNSET

from noetl_contracts.errors import MalformedMessage
from noetl_contracts.events import (
    Event,
    command_events,
    execution_events,
    frame_events,
    get_event_type,
    loop_events,
    state_events,
    step_events,
)
from noetl_contracts.identity import actors
from noetl_contracts.ids import CommandId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.status import CommandStatus, ExecutionStatus, RunStatus
from noetl_replay import (
    fold_batches,
    fold_commands,
    fold_control,
    fold_deadlines,
    fold_frames,
    fold_lineage,
    fold_loops,
    fold_streams,
)
from noetl_replay.state import (
    CommandState,
    ExecutionState,
    RunState,
    StepState,
    forget_oldest,
    remember_rejection,
)

FOLD_VERSION = 3
FENCED_MAX = 1024


def fold_history(state: ExecutionState, envelopes: Iterable[Envelope]) -> ExecutionState:
    """Apply a history, or the next part of it; consumes `state`.

    Raises `MalformedMessage` when an envelope does not follow the one before it.
    """
    for envelope in envelopes:
        state = fold_event(state, envelope)
    return state


def fold_event(state: ExecutionState, envelope: Envelope) -> ExecutionState:
    """Apply one event; consumes `state`. Raises `MalformedMessage` for a gap or a repetition."""
    if envelope.stream_version != state.version + 1:
        raise MalformedMessage(
            f"execution {state.execution_id}: version {envelope.stream_version} "
            f"does not follow {state.version}"
        )
    state.version = envelope.stream_version
    state.checksum = envelope.envelope_checksum
    state.updated_at = envelope.event_time
    state.last_event_id = envelope.event_id
    state.last_event_type = get_event_type(envelope.event)
    _apply_event(state, envelope, envelope.event)
    return state


# What most events of a history are is asked first.
def _apply_event(state: ExecutionState, at: Envelope, event: Event) -> None:
    match event:
        case (
            command_events.CommandIssued()
            | command_events.CommandReissued()
            | command_events.CommandStarted()
            | command_events.CommandHeartbeat()
            | command_events.CommandCompleted()
            | command_events.CommandFailed()
            | command_events.CommandCancelled()
            | command_events.CommandRejected()
        ):
            _apply_command(state, at, event)
        case (
            step_events.StepEnter()
            | step_events.StepFailed()
            | step_events.StepExit()
            | step_events.CallDone()
            | step_events.CallError()
            | step_events.CallPartial()
        ):
            _apply_step(state, at, event)
        case (
            execution_events.PlaybookInitialized()
            | execution_events.StateInherited()
            | execution_events.PlaybookCompleted()
            | execution_events.PlaybookFailed()
            | execution_events.CancelRequested()
            | execution_events.ExecutionCancelled()
        ):
            _apply_execution(state, at, event)
        case (
            execution_events.ExecutionPaused()
            | execution_events.ExecutionResumed()
            | execution_events.DeadlinePassed()
            | execution_events.CustomEvent()
            | execution_events.CtxPatched()
            | execution_events.BusinessObjectChanged()
            | execution_events.FilesChanged()
            | state_events.StateRead()
            | state_events.StateChanged()
        ):
            fold_control.apply_control(state, at, event)
        case (
            loop_events.LoopStarted()
            | loop_events.LoopResized()
            | loop_events.LoopDone()
            | loop_events.LoopFailed()
        ):
            fold_loops.apply_loop(state, at, event)
        case loop_events.LoopItemsReturned():
            fold_batches.return_items(state, event)
        case (
            loop_events.LoopFanoutStarted()
            | loop_events.LoopShardEnqueued()
            | loop_events.LoopShardDone()
            | loop_events.LoopShardFailed()
            | loop_events.LoopFaninCompleted()
        ):
            return  # they name what the events of stages and frames have changed already
        case (
            loop_events.StageOpened()
            | loop_events.StageClosed()
            | loop_events.ReduceLevelOpened()
            | frame_events.FrameDispatched()
            | frame_events.FrameStarted()
            | frame_events.FrameHeartbeat()
            | frame_events.FrameAbandoned()
            | frame_events.FrameCommitted()
            | frame_events.FrameFailed()
            | frame_events.FrameCommitRejected()
        ):
            fold_frames.apply_frame(state, at, event)
        case _:
            fold_commands.apply_wait(state, at, event)


def _apply_execution(
    state: ExecutionState,
    at: Envelope,
    event: execution_events.PlaybookInitialized
    | execution_events.StateInherited
    | execution_events.PlaybookCompleted
    | execution_events.PlaybookFailed
    | execution_events.CancelRequested
    | execution_events.ExecutionCancelled,
) -> None:
    match event:
        case execution_events.PlaybookInitialized():
            _initialize_execution(state, at, event)
        case execution_events.StateInherited():
            _inherit_state(state, event)
        case execution_events.PlaybookCompleted():
            state.result = event.result
            _end_execution(state, at, ExecutionStatus.COMPLETED)
        case execution_events.PlaybookFailed():
            state.failure, state.failed_step = event.error, event.step
            _end_execution(state, at, ExecutionStatus.FAILED)
        case execution_events.CancelRequested():
            state.cancelling_at, state.cancel_reason = at.event_time, event.reason
        case execution_events.ExecutionCancelled():
            _end_execution(state, at, ExecutionStatus.CANCELLED)
        case _:
            assert_never(event)


def _initialize_execution(
    state: ExecutionState, at: Envelope, event: execution_events.PlaybookInitialized
) -> None:
    state.status = ExecutionStatus.RUNNING
    state.path, state.catalog_id = event.path, event.catalog_id
    state.catalog_version, state.playbook_digest = event.catalog_version, event.playbook_digest
    state.workload, state.workload_ref = event.workload, event.workload_ref
    state.ctx = dict(event.ctx)
    state.parent_execution_id, state.parent = event.parent_execution_id, event.parent
    state.expires_at = event.expires_at
    if event.due_at is not None:
        state.due_at = event.due_at
    state.started_at = at.event_time
    state.tokens[event.entry_step] = event.came_from
    state.source = event.source
    state.pool, state.priority = event.pool, event.priority
    if event.backfill is not None:
        state.backfill = event.backfill
    actor = actors.read_actor(at.meta)
    if actor is not None:
        state.actor = actor
    if at.correlation_id not in {None, state.execution_id}:
        state.correlation_id = at.correlation_id


def _inherit_state(state: ExecutionState, event: execution_events.StateInherited) -> None:
    state.ctx = {**state.ctx, **event.ctx}
    for inherited in event.steps:
        remembered = ensure_step(state, inherited.step)
        remembered.status, remembered.run_id = inherited.status, inherited.run_id
        remembered.result, remembered.error = inherited.result, inherited.error


def _end_execution(state: ExecutionState, at: Envelope, status: ExecutionStatus) -> None:
    state.status, state.ended_at = status, at.event_time
    fold_deadlines.end_marks(state, at)
    state.tokens.clear()
    state.lineage.clear()
    state.runs.clear()
    state.commands.clear()
    state.frames.clear()
    state.stages.clear()
    state.children.clear()
    state.deadlines.clear()
    state.fenced.clear()
    state.rejections.clear()
    state.held.clear()
    state.granted_requests.clear()
    state.objects.clear()


def _apply_step(
    state: ExecutionState,
    at: Envelope,
    event: step_events.StepEnter
    | step_events.StepFailed
    | step_events.StepExit
    | step_events.CallDone
    | step_events.CallError
    | step_events.CallPartial,
) -> None:
    match event:
        case step_events.StepEnter():
            state.tokens.pop(event.step, None)
            state.activations = max(state.activations, event.activation)
            state.runs[event.run_id] = RunState(
                run_id=event.run_id,
                step=event.step,
                activation=event.activation,
                came_from=event.came_from,
                expires_at=event.expires_at,
                entered_at=at.event_time,
                due_at=event.due_at or UNSET,
            )
            fold_lineage.start_run_lineage(state, at, event)
            fold_streams.attach_to_producer(state, event)
            remembered = ensure_step(state, event.step)
            remembered.activations += 1
            remembered.status, remembered.run_id = RunStatus.RUNNING, event.run_id
            remembered.started_at, remembered.ended_at = at.event_time, None
            remembered.attempt, remembered.worker_id = 1, None
        case step_events.StepFailed():
            remembered = ensure_step(state, event.step)
            remembered.result, remembered.error = None, event.error
        case step_events.StepExit():
            fold_lineage.pass_on_lineage(state, event)
            state.runs.pop(event.run_id, None)
            fold_deadlines.end_run_mark(state, at, event.run_id)
            ended = ensure_step(state, event.step)
            ended.status, ended.error = event.status, event.failure or ended.error
            ended.ended_at = at.event_time
            state.ctx = {**state.ctx, **event.patch}
            state.warnings += len(event.notes)
            state.tokens.update(dict.fromkeys(event.targets, event.step))
            if event.error is not None and state.failure is None:
                state.failure, state.failed_step = event.error, event.step
            if event.status is RunStatus.COMPLETED:
                state.last_step = event.step
        case step_events.CallPartial():
            fold_streams.receive_chunk(state, event)
        case step_events.CallDone() | step_events.CallError():
            _end_call(state, at, event)
        case _:
            assert_never(event)


def _end_call(
    state: ExecutionState, at: Envelope, event: step_events.CallDone | step_events.CallError
) -> None:
    if event.patch:
        state.ctx = {**state.ctx, **event.patch}
    state.warnings += len(event.notes) if isinstance(event, step_events.CallDone) else 0
    fold_streams.end_call(state, event)
    if event.item_index is None:
        _remember_outcome(state, event)
        fold_lineage.remember_run_result(state, at, event)
    elif event.in_batch is None:
        fold_loops.count_ended_item(state, event)
    else:
        fold_batches.end_batch_item(state, event, event.in_batch)


def _remember_outcome(
    state: ExecutionState, event: step_events.CallDone | step_events.CallError
) -> None:
    remembered = ensure_step(state, event.step)
    remembered.result = event.result
    remembered.error = event.error if isinstance(event, step_events.CallError) else None


def _remember_worker(
    state: ExecutionState, event: command_events.CommandCompleted | command_events.CommandFailed
) -> None:
    """Remember which attempt of which worker made a step's outcome; units have none."""
    command_state = state.commands[event.command_id]
    if (
        command_state.item_index is None
        and command_state.slot is None
        and command_state.frame_id is None
    ):
        made = ensure_step(state, event.step)
        made.attempt, made.worker_id = event.attempt, event.worker_id


def ensure_step(state: ExecutionState, name: str) -> StepState:
    """Return what is remembered of a step, beginning it when there is nothing yet."""
    return state.steps.setdefault(name, StepState(step=name))


_CommandEvent = (
    command_events.CommandIssued
    | command_events.CommandReissued
    | command_events.CommandStarted
    | command_events.CommandHeartbeat
    | command_events.CommandCompleted
    | command_events.CommandFailed
    | command_events.CommandCancelled
    | command_events.CommandRejected
)


def _apply_command(state: ExecutionState, at: Envelope, event: _CommandEvent) -> None:
    match event:
        case command_events.CommandIssued():
            _issue_command(state, at, event)
        case command_events.CommandReissued():
            _reissue_command(state, at, event)
        case command_events.CommandStarted():
            command_state = _touch_command(state, event.command_id)
            command_state.status, command_state.worker_id = CommandStatus.RUNNING, event.worker_id
            command_state.worker_locator, command_state.locality = (
                event.worker_locator,
                event.locality,
            )
            command_state.started_event_id, command_state.heard_at = at.event_id, at.event_time
            fold_commands.end_offer(state, event)
        case command_events.CommandHeartbeat():
            _touch_command(state, event.command_id).heard_at = at.event_time
        case command_events.CommandCompleted():
            fold_loops.end_slot(state, at, event)
            fold_commands.remember_result_place(state, event)
            _remember_worker(state, event)
            fold_commands.add_run_metrics(state, event.run_id, event.tasks)
            fold_batches.note_command_time(state, event)
            _settle_command(state, at, event.command_id, CommandStatus.COMPLETED)
        case command_events.CommandFailed():
            fold_loops.fail_slot(state, event)
            _remember_worker(state, event)
            fold_commands.add_run_metrics(state, event.run_id, event.tasks)
            _settle_command(state, at, event.command_id, CommandStatus.FAILED)
        case command_events.CommandCancelled():
            fold_loops.count_cancelled_item(state, event)
            fold_streams.cancel_activation(state, event)
            _settle_command(state, at, event.command_id, CommandStatus.CANCELLED)
        case command_events.CommandRejected():
            remember_rejection(state, f"{event.command_id}/{event.attempt}/{event.fact}")
            if event.command_id in state.commands:
                _touch_command(state, event.command_id).rejected += 1
        case _:
            assert_never(event)


def _issue_command(
    state: ExecutionState, at: Envelope, event: command_events.CommandIssued
) -> None:
    state.commands[event.command_id] = state.changes.commands[event.command_id] = CommandState(
        command_id=event.command_id,
        run_id=event.run_id,
        step=event.step,
        unit=event.unit,
        pool=event.pool,
        lane=event.lane,
        attempts_max=event.attempts_max,
        stage_id=event.stage_id,
        slot=event.slot,
        item_index=event.item_index,
        issued_event_id=at.event_id,
        issued_at=at.event_time,
        heard_at=at.event_time,
    )
    fold_commands.remember_offer(state, state.commands[event.command_id], event)
    fold_loops.count_issued(state, at, event)
    fold_batches.begin_items(state, event)


def _reissue_command(
    state: ExecutionState, at: Envelope, event: command_events.CommandReissued
) -> None:
    command_state = _touch_command(state, event.command_id)
    command_state.attempt, command_state.status = event.attempt, CommandStatus.ISSUED
    command_state.heard_at, command_state.worker_id = at.event_time, None
    command_state.losses += event.reason not in command_events.REASONS_WITHOUT_LOSS
    fold_commands.withdraw_offer(state, command_state)
    if state.paused_at is not None:
        state.held[event.command_id] = None
    fold_loops.count_reissued(state, event, command_state)


def _touch_command(state: ExecutionState, command_id: CommandId) -> CommandState:
    command_state = state.commands[command_id]
    state.changes.commands[command_id] = command_state
    return command_state


def _settle_command(
    state: ExecutionState, at: Envelope, command_id: CommandId, status: CommandStatus
) -> None:
    command_state = _touch_command(state, command_id)
    command_state.status, command_state.terminal_event_id, command_state.completed_at = (
        status,
        at.event_id,
        at.event_time,
    )
    del state.commands[command_id]
    state.held.pop(command_id, None)
    state.deadlines.pop(command_id, None)
    state.offered.pop(command_id, None)
    if command_state.attempt > 1:
        state.fenced[command_id] = command_state.attempt
        forget_oldest(state.fenced, FENCED_MAX)
