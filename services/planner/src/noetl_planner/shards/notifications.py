"""Notifications after a commit, to workers, planners and clients; each of them may be lost."""

from datetime import datetime

from noetl_chassis.observability import instruments, names
from noetl_contracts import codec, subjects
from noetl_contracts.commands.command_work import COMMAND_BYTES_MAX
from noetl_contracts.commands.worker_pools import get_lane_host
from noetl_contracts.events.command_events import CommandStarted
from noetl_messaging.streams.ports import Hints
from noetl_planner.domain.decision.draft import Decision
from noetl_planner.shards.commit_feed import CommitFeed
from noetl_planner.shards.worker_presence import WorkerPresence
from noetl_replay.state import ExecutionState

MADE, TAKEN, WITHDRAWN = "made", "taken", "withdrawn"


def notify_end(
    board: CommitFeed, state: ExecutionState, decision: Decision, ingest_time: datetime
) -> None:
    """Wake who waits for an end, when this was it."""
    if state.is_terminal() and decision.envelopes:
        board.put_commits(state.execution_id, decision.envelopes, ingest_time)


async def notify_decision(
    hints: Hints,
    worker_presence: WorkerPresence,
    board: CommitFeed,
    state: ExecutionState,
    decision: Decision,
    *,
    ingest_time: datetime,
) -> None:
    """Stop, halt, pause, offer, grant, and wake who follows what goes on."""
    for command_id in decision.to_stop:
        await hints.notify(subjects.build_stop_hint(command_id))
        # Workers of the release before listen there.
        await hints.notify(subjects.build_hint_subject(f"stop-{command_id}"))
    if decision.to_stop and (state.is_terminal() or state.cancelling_at):
        # Commands that wait in a queue are not to begin.
        await hints.notify(subjects.build_halted_hint(state.execution_id))
    for command_id in decision.to_pause:
        await hints.notify(subjects.build_pause_hint(command_id))
        await hints.notify(subjects.build_hint_subject(f"pause-{command_id}"))
    for command_id, progress in decision.stream_progress.items():
        await hints.notify(subjects.build_chunk_progress_hint(command_id, progress.encode_token()))
    await _send_offers(hints, worker_presence, decision)
    if decision.envelopes:
        if not state.is_terminal():
            board.put_commits(state.execution_id, decision.envelopes, ingest_time)
        await hints.notify(subjects.build_growth_hint(state.execution_id))


async def _send_offers(hints: Hints, worker_presence: WorkerPresence, decision: Decision) -> None:
    for offer in decision.offers:
        data = codec.encode_json(offer.command)
        worker_presence.count_offer(offer.worker_id, get_lane_host(offer.command.lane))
        # What is too large for a message is refused when it goes to everybody.
        if len(data) <= COMMAND_BYTES_MAX:
            await hints.broadcast(subjects.build_offer_subject(offer.worker_id), data)
    for command_id, attempt in decision.granted.items():
        await hints.notify(subjects.build_grant_subject(command_id, attempt))
    for worker_id in decision.withdrawn:
        # It is busier than it said, or gone: nothing more is offered to it before it speaks again.
        worker_presence.forget_worker(worker_id)
    start_events = (
        envelope.event
        for envelope in decision.envelopes
        if isinstance(envelope.event, CommandStarted)
    )
    for outcome, count in (
        (MADE, len(decision.offers)),
        (TAKEN, sum(event.command_id in decision.granted for event in start_events)),
        (WITHDRAWN, len(decision.withdrawn)),
    ):
        if count:
            instruments.add_to_counter(names.OFFERS, count, labels={names.OUTCOME: outcome})
