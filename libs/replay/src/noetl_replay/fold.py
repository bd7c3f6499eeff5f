"""The one fold: what each event means. Planner, projector, replay and audit all use it."""

from collections.abc import Iterable
from typing import assert_never

from noetl_contracts.envelope import Envelope
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.events import (
    Event,
    business,
    command,
    context,
    control,
    event_type,
    execution,
    fanout,
    files,
    frame,
    loop,
    reduce,
    stage,
    step,
    stream,
)
from noetl_contracts.ids import CommandId
from noetl_contracts.status import CommandStatus, ExecutionStatus, RunStatus
from noetl_replay import (
    fold_control,
    fold_frames,
    fold_lineage,
    fold_loops,
    fold_metrics,
    fold_parking,
    fold_places,
    fold_streams,
    fold_units,
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


def fold(state: ExecutionState, envelopes: Iterable[Envelope]) -> ExecutionState:
    """Apply a history, or the next part of it; consumes `state`.

    Raises `MalformedMessage` when an envelope does not follow the one before it.
    """
    for envelope in envelopes:
        state = evolve(state, envelope)
    return state


def evolve(state: ExecutionState, envelope: Envelope) -> ExecutionState:
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
    state.last_event_type = event_type(envelope.event)
    _apply(state, envelope, envelope.event)
    return state


def _apply(state: ExecutionState, at: Envelope, event: Event) -> None:
    # What most events of a history are is asked first.
    match event:
        case (
            command.CommandIssued()
            | command.CommandReissued()
            | command.CommandStarted()
            | command.CommandHeartbeat()
            | command.CommandCompleted()
            | command.CommandFailed()
            | command.CommandCancelled()
            | command.CommandRejected()
        ):
            _apply_command(state, at, event)
        case (
            step.StepEnter()
            | step.StepFailed()
            | step.StepExit()
            | step.CallDone()
            | step.CallError()
        ):
            _apply_step(state, at, event)
        case (
            execution.PlaybookInitialized()
            | execution.StateInherited()
            | execution.PlaybookCompleted()
            | execution.PlaybookFailed()
            | execution.CancelRequested()
            | execution.ExecutionCancelled()
        ):
            _apply_execution(state, at, event)
        case (
            control.ExecutionPaused()
            | control.ExecutionResumed()
            | control.CustomEvent()
            | context.CtxPatched()
            | business.BusinessObjectChanged()
            | files.FilesChanged()
        ):
            fold_control.apply(state, at, event)
        case stream.CallPartial():
            fold_streams.receive(state, event)
        case loop.LoopStarted() | loop.LoopResized() | loop.LoopDone() | loop.LoopFailed():
            fold_loops.apply(state, at, event)
        case reduce.ReduceLevelOpened():
            fold_units.open_level(state, at, event)
        case (
            fanout.LoopFanoutStarted()
            | fanout.LoopShardEnqueued()
            | fanout.LoopShardDone()
            | fanout.LoopShardFailed()
            | fanout.LoopFaninCompleted()
        ):
            # They name what the events of stages and frames have changed already.
            return
        case (
            stage.StageOpened()
            | stage.StageClosed()
            | frame.FrameDispatched()
            | frame.FrameStarted()
            | frame.FrameHeartbeat()
            | frame.FrameAbandoned()
            | frame.FrameCommitted()
            | frame.FrameFailed()
            | frame.FrameCommitRejected()
        ):
            fold_frames.apply(state, at, event)
        case _:
            fold_parking.apply(state, at, event)


def _apply_execution(
    state: ExecutionState,
    at: Envelope,
    event: execution.PlaybookInitialized
    | execution.StateInherited
    | execution.PlaybookCompleted
    | execution.PlaybookFailed
    | execution.CancelRequested
    | execution.ExecutionCancelled,
) -> None:
    match event:
        case execution.PlaybookInitialized():
            _initialize(state, at, event)
        case execution.StateInherited():
            _inherit(state, event)
        case execution.PlaybookCompleted():
            state.result = event.result
            _end(state, at, ExecutionStatus.COMPLETED)
        case execution.PlaybookFailed():
            state.failure, state.failed_step = event.error, event.step
            _end(state, at, ExecutionStatus.FAILED)
        case execution.CancelRequested():
            state.cancelling_at, state.cancel_reason = at.event_time, event.reason
        case execution.ExecutionCancelled():
            _end(state, at, ExecutionStatus.CANCELLED)
        case _:
            assert_never(event)


def _initialize(state: ExecutionState, at: Envelope, event: execution.PlaybookInitialized) -> None:
    state.status = ExecutionStatus.RUNNING
    state.path, state.catalog_id = event.path, event.catalog_id
    state.catalog_version, state.playbook_digest = event.catalog_version, event.playbook_digest
    state.workload, state.workload_ref = event.workload, event.workload_ref
    state.ctx = dict(event.ctx)
    state.parent_execution_id, state.parent = event.parent_execution_id, event.parent
    state.expires_at = event.expires_at
    state.started_at = at.event_time
    state.tokens[event.entry_step] = event.came_from
    state.source = event.source
    state.pool, state.priority = event.pool, event.priority
    if at.correlation_id not in {None, state.execution_id}:
        state.correlation_id = at.correlation_id


def _inherit(state: ExecutionState, event: execution.StateInherited) -> None:
    state.ctx = {**state.ctx, **event.ctx}
    for inherited in event.steps:
        remembered = step_of(state, inherited.step)
        remembered.status, remembered.run_id = inherited.status, inherited.run_id
        remembered.result, remembered.error = inherited.result, inherited.error


def _end(state: ExecutionState, at: Envelope, status: ExecutionStatus) -> None:
    state.status, state.ended_at = status, at.event_time
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
    state.wishes.clear()
    state.objects.clear()


def _apply_step(
    state: ExecutionState,
    at: Envelope,
    event: step.StepEnter | step.StepFailed | step.StepExit | step.CallDone | step.CallError,
) -> None:
    match event:
        case step.StepEnter():
            state.tokens.pop(event.step, None)
            state.activations = max(state.activations, event.activation)
            state.runs[event.run_id] = RunState(
                run_id=event.run_id,
                step=event.step,
                activation=event.activation,
                came_from=event.came_from,
                expires_at=event.expires_at,
                entered_at=at.event_time,
            )
            fold_lineage.enter(state, at, event)
            fold_streams.attach(state, event)
            remembered = step_of(state, event.step)
            remembered.activations += 1
            remembered.status, remembered.run_id = RunStatus.RUNNING, event.run_id
            remembered.started_at, remembered.ended_at = at.event_time, None
            remembered.attempt, remembered.worker_id = 1, None
        case step.StepFailed():
            remembered = step_of(state, event.step)
            remembered.result, remembered.error = None, event.error
        case step.StepExit():
            fold_lineage.leave(state, event)
            state.runs.pop(event.run_id, None)
            ended = step_of(state, event.step)
            ended.status, ended.error = event.status, event.failure or ended.error
            ended.ended_at = at.event_time
            state.ctx = {**state.ctx, **event.patch}
            state.warnings += len(event.notes)
            state.tokens.update(dict.fromkeys(event.targets, event.step))
            if event.error is not None and state.failure is None:
                state.failure, state.failed_step = event.error, event.step
            if event.status is RunStatus.COMPLETED:
                state.last_step = event.step
        case step.CallDone() | step.CallError():
            if event.patch:
                state.ctx = {**state.ctx, **event.patch}
            state.warnings += len(event.notes) if isinstance(event, step.CallDone) else 0
            fold_streams.end_call(state, event)
            if event.item_index is None:
                _remember_outcome(state, event)
                fold_lineage.finish(state, at, event)
            else:
                fold_loops.count_item(state, event)
        case _:
            assert_never(event)


def _remember_outcome(state: ExecutionState, event: step.CallDone | step.CallError) -> None:
    remembered = step_of(state, event.step)
    remembered.result = event.result
    remembered.error = event.error if isinstance(event, step.CallError) else None


def _remember_maker(
    state: ExecutionState, event: command.CommandCompleted | command.CommandFailed
) -> None:
    """Remember which attempt of which worker made a step's outcome; units have none."""
    live = state.commands[event.command_id]
    if live.item_index is None and live.slot is None and live.frame_id is None:
        made = step_of(state, event.step)
        made.attempt, made.worker_id = event.attempt, event.worker_id


def step_of(state: ExecutionState, name: str) -> StepState:
    """Return what is remembered of a step, beginning it when there is nothing yet."""
    return state.steps.setdefault(name, StepState(step=name))


_CommandEvent = (
    command.CommandIssued
    | command.CommandReissued
    | command.CommandStarted
    | command.CommandHeartbeat
    | command.CommandCompleted
    | command.CommandFailed
    | command.CommandCancelled
    | command.CommandRejected
)


def _apply_command(state: ExecutionState, at: Envelope, event: _CommandEvent) -> None:
    match event:
        case command.CommandIssued():
            _issue(state, at, event)
        case command.CommandReissued():
            _reissue(state, at, event)
        case command.CommandStarted():
            live = _touched(state, event.command_id)
            live.status, live.worker_id = CommandStatus.RUNNING, event.worker_id
            live.worker_locator, live.locality = event.worker_locator, event.locality
            live.started_event_id, live.heard_at = at.event_id, at.event_time
            fold_places.take(state, event)
        case command.CommandHeartbeat():
            _touched(state, event.command_id).heard_at = at.event_time
        case command.CommandCompleted():
            fold_loops.end_slot(state, at, event)
            fold_places.remember_place(state, event)
            _remember_maker(state, event)
            fold_metrics.add_to_run(state, event.run_id, event.tasks)
            _settle(state, at, event.command_id, CommandStatus.COMPLETED)
        case command.CommandFailed():
            fold_loops.fail_slot(state, event)
            _remember_maker(state, event)
            fold_metrics.add_to_run(state, event.run_id, event.tasks)
            _settle(state, at, event.command_id, CommandStatus.FAILED)
        case command.CommandCancelled():
            fold_loops.cancel_item(state, event)
            fold_streams.call_off(state, event)
            _settle(state, at, event.command_id, CommandStatus.CANCELLED)
        case command.CommandRejected():
            remember_rejection(state, f"{event.command_id}/{event.attempt}/{event.fact}")
            if event.command_id in state.commands:
                _touched(state, event.command_id).rejected += 1
        case _:
            assert_never(event)


def _issue(state: ExecutionState, at: Envelope, event: command.CommandIssued) -> None:
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
    fold_places.offer(state, state.commands[event.command_id], event)
    fold_loops.count_issue(state, at, event)


def _reissue(state: ExecutionState, at: Envelope, event: command.CommandReissued) -> None:
    live = _touched(state, event.command_id)
    live.attempt, live.status = event.attempt, CommandStatus.ISSUED
    live.heard_at, live.worker_id = at.event_time, None
    live.losses += event.reason not in command.BLAMELESS
    fold_places.withdraw(state, live)
    if state.paused_at is not None:
        state.held[event.command_id] = None
    fold_loops.count_reissue(state, event, live)


def _touched(state: ExecutionState, command_id: CommandId) -> CommandState:
    live = state.commands[command_id]
    state.changes.commands[command_id] = live
    return live


def _settle(
    state: ExecutionState, at: Envelope, command_id: CommandId, status: CommandStatus
) -> None:
    live = _touched(state, command_id)
    live.status, live.terminal_event_id, live.completed_at = status, at.event_id, at.event_time
    del state.commands[command_id]
    state.held.pop(command_id, None)
    state.deadlines.pop(command_id, None)
    state.offered.pop(command_id, None)
    if live.attempt > 1:
        state.fenced[command_id] = live.attempt
        forget_oldest(state.fenced, FENCED_MAX)
