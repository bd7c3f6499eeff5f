"""Facts about commands: taken, heard of, ended, lost."""

from typing import assert_never

from noetl_contracts import facts
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import command, files, step
from noetl_contracts.ids import WorkerId
from noetl_contracts.status import CommandStatus, FrameStatus, RunStatus
from noetl_planner.domain import (
    cancelling,
    chunk_sets,
    cursors,
    fences,
    flow,
    frame_ends,
    frame_policies,
    growth,
    issuing,
    items,
    looping,
    placing,
    reducing,
    streaming,
    unit_facts,
)
from noetl_planner.domain.draft import Draft
from noetl_planner.domain.evaluation import Outcome, Refusal
from noetl_replay.state import CommandState, FrameState

# A slot that makes no progress at all is lost this often before its loop gives it up.
SLOT_LOSSES_MAX = 10


def note(
    draft: Draft, fact: facts.CommandStarted | facts.CommandHeartbeat | facts.CommandStopped
) -> None:
    """Record that a worker took, holds, or stopped a command."""
    kind = str(fact.__struct_config__.tag)
    live = fences.live_command(
        draft, fact.command_id, fact.attempt, fact=kind, worker_id=fact.worker_id
    )
    if live is None:
        _answer_late(draft, fact)
        return
    if live.status is CommandStatus.PARKED:
        return
    _answer(draft, live)
    match fact:
        case facts.CommandStarted():
            issuing.start(
                draft,
                live,
                fact.worker_id,
                worker_locator=fact.worker_locator,
                locality=fact.locality,
                max_distance=fact.max_distance,
            )
            placing.grant(draft, live, fact.worker_id)
        case facts.CommandHeartbeat():
            issuing.beat(draft, live, fact.worker_id)
        case facts.CommandStopped():
            _stopped(draft, live)
        case _:
            assert_never(fact)


def _answer(draft: Draft, live: CommandState) -> None:
    """Tell a worker again what it may have missed: hints get lost, and commands come late."""
    streaming.answer(draft, draft.state.runs[live.run_id])
    if draft.state.cancelling_at is not None:
        draft.to_stop[live.command_id] = None
    elif live.slot is not None and (
        draft.state.paused_at is not None
        or cursors.is_surplus(draft.state.runs[live.run_id], live.slot)
    ):
        draft.to_pause[live.command_id] = None


def _answer_late(
    draft: Draft, fact: facts.CommandStarted | facts.CommandHeartbeat | facts.CommandStopped
) -> None:
    is_gone = fact.command_id not in draft.state.commands
    if is_gone and not isinstance(fact, facts.CommandStopped):
        draft.to_stop[fact.command_id] = None


def _stopped(draft: Draft, live: CommandState) -> None:
    if draft.state.cancelling_at is None:
        # A hint for an earlier attempt met this one: nobody wanted it to stop.
        lose(
            draft,
            facts.CommandLost(
                command_id=live.command_id, attempt=live.attempt, reason="", is_release=True
            ),
        )
        return
    issuing.call_off(draft, live, cancelling.REASON)
    cancelling.settle(draft)


def note_files(draft: Draft, fact: facts.FilesChanged) -> None:
    """Record how long the journal of the execution's files is; old news changes nothing."""
    if draft.state.version and fact.entries > draft.state.file_entries:
        draft.emit(files.FilesChanged(entries=fact.entries))


def end(draft: Draft, fact: facts.CommandCompleted | facts.CommandFailed) -> None:
    """Accept the outcome of a step or item, or the failure of a slot."""
    kind = str(fact.__struct_config__.tag)
    live = fences.live_command(
        draft, fact.command_id, fact.attempt, fact=kind, worker_id=fact.worker_id
    )
    if live is None or live.status is CommandStatus.PARKED:
        return
    if isinstance(fact, facts.CommandFailed) and live.frame_id is not None:
        unit_facts.failed(draft, live, fact)
        return
    if isinstance(fact, facts.CommandFailed):
        fail(draft, live, fact.error, worker_id=fact.worker_id, fact=fact)
        return
    if live.frame_id is not None or live.slot is not None:
        # Frames and slots end by facts of their own; whoever says this does not know what it had.
        return
    try:
        written = chunk_sets.written(draft, live, fact)
    except Refusal as refusal:
        fail(draft, live, refusal.error, worker_id=fact.worker_id)
        return
    patch, refused = growth.carried(draft, written, step=live.step)
    if refused is not None:
        fail(draft, live, refused, worker_id=fact.worker_id)
        return
    draft.emit(
        command.CommandCompleted(
            command_id=live.command_id,
            run_id=live.run_id,
            step=live.step,
            attempt=live.attempt,
            worker_id=fact.worker_id,
            metrics=fact.metrics,
            tasks=fact.tasks,
        )
    )
    draft.emit(
        step.CallDone(
            step=live.step,
            run_id=live.run_id,
            command_id=live.command_id,
            result=fact.result,
            patch=patch,
            item_index=live.item_index,
            notes=fact.notes,
            tries=fact.tries,
        )
    )
    _progress(draft, live, Outcome(status=RunStatus.COMPLETED))


def fail(
    draft: Draft,
    live: CommandState,
    error: ErrorObject,
    *,
    worker_id: WorkerId | None,
    fact: facts.CommandFailed | None = None,
) -> None:
    """End a command as failed, and go on from there; writes that do not fit are left out."""
    patch, _ = growth.carried(draft, fact.patch if fact is not None else {}, step=live.step)
    tasks = fact.tasks if fact is not None else {}
    issuing.fail(draft, live, error, worker_id=worker_id, tasks=tasks)
    if live.slot is None:
        draft.emit(
            step.CallError(
                step=live.step,
                run_id=live.run_id,
                command_id=live.command_id,
                error=error,
                result=fact.result if fact is not None else None,
                patch=patch,
                item_index=live.item_index,
            )
        )
    _progress(draft, live, Outcome(status=RunStatus.FAILED, error=error))


def _progress(draft: Draft, live: CommandState, ended: Outcome) -> None:
    run = draft.state.runs.get(live.run_id)
    if run is None or draft.state.cancelling_at is not None:
        cancelling.settle(draft)
        return
    if streaming.is_part(run):
        _end_stream(draft, streaming.go_on(draft, run))
        return
    outcome: Outcome | None = ended
    if live.slot is not None:
        outcome = cursors.look_again(draft, run)
    elif live.item_index is not None:
        outcome = items.go_on(draft, run)
    if outcome is not None:
        flow.end_run(draft, run, outcome.status, error=outcome.error)
        flow.advance(draft)


def receive_chunk(draft: Draft, fact: facts.ChunkEmitted) -> None:
    """Accept the next chunk of a stream; one that came before, or too early, changes nothing."""
    live = fences.live_command(
        draft, fact.command_id, fact.attempt, fact="chunk_emitted", worker_id=fact.worker_id
    )
    if live is None or live.status is CommandStatus.PARKED:
        return
    if draft.state.cancelling_at is not None:
        draft.to_stop[live.command_id] = None
        return
    _end_stream(draft, streaming.receive(draft, live, fact))


def _end_stream(draft: Draft, ended: streaming.Ended | None) -> None:
    if ended is not None:
        flow.end_run(draft, ended.run, ended.outcome.status, error=ended.outcome.error)
    flow.advance(draft)


def collect(draft: Draft, fact: facts.ItemsCollected) -> None:
    """Accept the gathered results of a loop; an epoch that is over stays over."""
    run = next((one for one in draft.state.runs.values() if one.run_id == fact.run_id), None)
    if run is None or run.loop is None or run.loop.is_finished:
        return
    if run.feed is not None:
        _end_stream(draft, streaming.collected(draft, run, fact))
        return
    outcome = looping.collected(draft, run, fact)
    flow.end_run(draft, run, outcome.status, error=outcome.error)
    flow.advance(draft)


def collect_parts(draft: Draft, fact: facts.PartsCollected) -> None:
    """Accept the gathered outputs of one level of a reduce stage."""
    reducing.collected(draft, fact)


def lose(draft: Draft, fact: facts.CommandLost) -> None:
    """Send a lost command again, or end it when its attempts are used up."""
    live = draft.state.commands.get(fact.command_id)
    if live is None or live.attempt != fact.attempt:
        return
    if live.command_id in draft.state.held or live.status is CommandStatus.PARKED:
        # Nobody holds a held or parked command, so nobody can have lost it.
        return
    if draft.state.cancelling_at is not None:
        _stopped(draft, live)
        return
    if live.slot is not None:
        _lose_slot(draft, live, fact)
        return
    if live.frame_id is not None:
        unit_facts.lost(draft, live, fact, _reason(fact))
        return
    if not fact.is_release and live.losses + 1 >= live.attempts_max:
        fail(draft, live, _worker_lost(live, fact.reason), worker_id=live.worker_id)
        return
    issuing.reissue(draft, live, _reason(fact))


def withdraw_untaken(draft: Draft) -> None:
    """Give to everybody what the worker that it was offered to has not taken in time.

    Nobody had it, so nobody lost it: a frame keeps its own attempt.
    """
    for command_id in placing.list_untaken(draft):
        live = draft.state.commands[command_id]
        if live.target is not None:
            draft.withdrawn.append(live.target)
        issuing.reissue(draft, live, command.NOT_TAKEN)


def _lose_slot(draft: Draft, live: CommandState, fact: facts.CommandLost) -> None:
    run = draft.state.runs[live.run_id]
    loop, stage = cursors.parts(draft, run)
    slot = loop.slots[live.slot or 0]
    open_frame = draft.state.frames.get(slot.open_frame_id) if slot.open_frame_id else None
    if not fact.is_release and live.losses + 1 >= max(live.attempts_max, SLOT_LOSSES_MAX):
        fail(draft, live, _worker_lost(live, fact.reason), worker_id=live.worker_id)
        return
    if fact.is_release and open_frame is None and cursors.is_surplus(run, live.slot):
        _retire(draft, live)
        return
    if open_frame is not None and open_frame.status is not FrameStatus.ABANDONED:
        _abandon(draft, open_frame, _reason(fact), frame_policies.attempts_max(stage))
    issuing.reissue(draft, live, _reason(fact))


def _retire(draft: Draft, live: CommandState) -> None:
    """End a slot that its loop has no more use for; others claim what it would have."""
    run = draft.state.runs[live.run_id]
    worker_id = live.worker_id or WorkerId("")
    issuing.complete(draft, live, worker_id=worker_id, metrics={}, is_dry=True)
    outcome = cursors.look_again(draft, run)
    if outcome is not None:
        flow.end_run(draft, run, outcome.status, error=outcome.error)
        flow.advance(draft)


def _abandon(draft: Draft, open_frame: FrameState, reason: str, attempts_max: int) -> None:
    issuing.abandon(draft, open_frame, reason)
    if open_frame.attempts < attempts_max:
        return
    frame_ends.exhaust(draft, open_frame, reason)


def _reason(fact: facts.CommandLost) -> str:
    return command.RELEASED if fact.is_release else fact.reason


def _worker_lost(live: CommandState, reason: str) -> ErrorObject:
    return ErrorObject(
        kind="worker_lost",
        code="WORKER_LOST",
        step=live.step,
        attempt=live.attempt,
        message=f"step {live.step!r} ({live.unit}) was dispatched {live.attempt} times "
        f"and lost each time: {reason}",
    )
