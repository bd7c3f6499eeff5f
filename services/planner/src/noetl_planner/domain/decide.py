"""`decide`: turns a state and facts into events; the entry of the planner's domain."""

from collections.abc import Iterable
from typing import assert_never

from noetl_contracts.errors import ErrorObject
from noetl_contracts.requests import facts
from noetl_planner.domain import (
    command_facts,
    command_messages,
    control_facts,
    execution_start,
    executions,
    frame_facts,
    timers,
)
from noetl_planner.domain.decision import limits
from noetl_planner.domain.decision.draft import CommandOffer, Decision, DecisionDraft
from noetl_planner.domain.decision.evaluation import Refusal
from noetl_planner.domain.steps import children, waits


def decide(
    draft: DecisionDraft, new_facts: Iterable[facts.Fact], *, refused: ErrorObject | None = None
) -> Decision:
    """Accept or reject facts in turn; each sees what the ones before it have changed.

    `refused` ends the execution afterwards: what the same facts led to could not be sent.

    Raises `PayloadNeeded` when a template needs a payload that `draft.loaded` does not hold, and
    `StateNeeded` for a value of `state`; the draft and its state are spoiled then.
    """
    playbook_limits = draft.program.playbook.executor.spec.policy.limits
    draft.limits = limits.lower_limits(draft.limits, playbook_limits)
    was_over = draft.state.is_terminal()
    limits.append_passed_deadlines(draft)
    for fact in new_facts:
        draft.reads.begin_fact()
        if draft.state.is_terminal():
            _answer_late_fact(draft, fact)
        else:
            _decide_or_fail(draft, fact)
    if refused is not None and not draft.state.is_terminal():
        executions.fail_execution(draft, refused, step=refused.step)
    state = draft.state
    if state.is_terminal() and not was_over:
        children.report_to_parent(draft)
    sent = [
        state.commands[command]
        for command in draft.to_send
        if command in state.commands
        and command not in state.held
        # Workers of these pools ask for their commands.
        and state.commands[command].pool not in draft.limits.pools.by_http
    ]
    offered = {
        command_state.command_id: command_state.target
        for command_state in sent
        if command_state.target is not None and command_state.command_id in state.offered
    }
    commands = [command_messages.build_command(draft, offer) for offer in sent]
    return Decision(
        commands=[item for item in commands if item.command_id not in offered],
        offers=[
            CommandOffer(worker_id=target, command=item)
            for item in commands
            if (target := offered.get(item.command_id)) is not None
        ],
        granted=draft.granted,
        withdrawn=draft.withdrawn,
        state_changes=draft.state_changes,
        envelopes=draft.envelopes,
        payloads=draft.payloads,
        sent_facts=draft.sent_facts,
        to_stop=list(draft.to_stop),
        to_pause=list(draft.to_pause),
        to_collect=list(draft.to_collect),
        stream_progress=draft.stream_progress,
        wake_at=timers.find_next_wake(draft),
    )


def _answer_late_fact(draft: DecisionDraft, fact: facts.Fact) -> None:
    children.repeat_parent_report(draft, fact)
    if isinstance(fact, facts.CommandStarted | facts.CommandHeartbeat):
        # A worker that continues after the end has missed the request to stop.
        draft.to_stop[fact.command_id] = None


def _decide_or_fail(draft: DecisionDraft, fact: facts.Fact) -> None:
    """Decide on a fact; what a playbook is refused that no step takes as its own ends it all.

    Nobody could decide on such a fact another time: the execution would neither go on nor end.
    """
    try:
        _decide_fact(draft, fact)
    except Refusal as refusal:
        if draft.state.version == 0:
            raise
        if not draft.state.is_terminal():
            executions.fail_execution(draft, refusal.error, step=refusal.error.step)


def _decide_fact(draft: DecisionDraft, fact: facts.Fact) -> None:  # noqa: C901, PLR0912 - one arm per fact
    match fact:
        case facts.ExecutionRequested():
            execution_start.start_execution(draft, fact)
        case facts.CancelRequested():
            executions.begin_cancellation(draft, fact)
        case facts.PauseRequested() | facts.ResumeRequested() | facts.CtxWriteRequested():
            control_facts.apply_control_fact(draft, fact)
        case facts.CommandStarted() | facts.CommandHeartbeat() | facts.CommandStopped():
            command_facts.note_command(draft, fact)
        case facts.CommandCompleted() | facts.CommandFailed():
            command_facts.end_command(draft, fact)
        case facts.CommandLost():
            command_facts.lose_command(draft, fact)
        case facts.ChunkEmitted():
            command_facts.receive_chunk(draft, fact)
        case facts.CommandParked():
            frame_facts.park_command(draft, fact)
            executions.settle_cancellation(draft)
        case facts.ItemsReturned():
            command_facts.return_items(draft, fact)
        case facts.ChildEnded():
            waits.end_child(draft, fact)
        case facts.MessageArrived():
            waits.deliver_message(draft, fact)
        case facts.FrameOpened():
            frame_facts.open_frame(draft, fact)
        case facts.FrameClosed():
            frame_facts.close_frame(draft, fact)
        case facts.FilesChanged():
            command_facts.note_changed_files(draft, fact)
        case facts.SlotDry():
            frame_facts.record_dry_slot(draft, fact)
        case facts.ItemsCollected():
            command_facts.accept_collected_items(draft, fact)
        case facts.PartsCollected():
            command_facts.accept_collected_parts(draft, fact)
        case facts.TimerDue():
            timers.run_due_timers(draft, reason=fact.reason)
        case _:
            assert_never(fact)
