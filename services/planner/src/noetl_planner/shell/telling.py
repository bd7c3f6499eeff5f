"""What is said after a commit to whoever it concerns; every word of it may be lost."""

from datetime import datetime

from noetl_chassis import instruments, names
from noetl_contracts import codec, subjects
from noetl_contracts.commands import COMMAND_BYTES_MAX
from noetl_contracts.events.command import CommandStarted
from noetl_contracts.lanes import host_of
from noetl_messaging.ports import Hints
from noetl_planner.domain.draft import Decision
from noetl_planner.shell.board import Board
from noetl_planner.shell.crowd import Crowd
from noetl_replay.state import ExecutionState

MADE, TAKEN, WITHDRAWN = "made", "taken", "withdrawn"


def tell_end(
    board: Board, state: ExecutionState, decision: Decision, ingest_time: datetime
) -> None:
    """Wake who waits for an end, when this was it."""
    if state.is_terminal() and decision.envelopes:
        board.put(state.execution_id, decision.envelopes, ingest_time)


async def tell(
    hints: Hints,
    crowd: Crowd,
    board: Board,
    state: ExecutionState,
    decision: Decision,
    *,
    ingest_time: datetime,
) -> None:
    """Stop, halt, pause, offer, grant, and wake who follows what goes on."""
    for command_id in decision.to_stop:
        await hints.poke(subjects.stop(command_id))
    if decision.to_stop and (state.is_terminal() or state.cancelling_at):
        # Commands that wait in a queue are not to begin.
        await hints.poke(subjects.halted(state.execution_id))
    for command_id in decision.to_pause:
        await hints.poke(subjects.pause(command_id))
    for command_id, taken in decision.taken.items():
        await hints.poke(subjects.taken_so_far(command_id, taken.token()))
    await _offer(hints, crowd, decision)
    if decision.envelopes:
        if not state.is_terminal():
            board.put(state.execution_id, decision.envelopes, ingest_time)
        await hints.poke(subjects.followed(state.execution_id))


async def _offer(hints: Hints, crowd: Crowd, decision: Decision) -> None:
    for offer in decision.offers:
        data = codec.encode(offer.command)
        crowd.offered(offer.worker_id, host_of(offer.command.lane))
        # What is too large for a message is refused when it goes to everybody.
        if len(data) <= COMMAND_BYTES_MAX:
            await hints.say(subjects.offer(offer.worker_id), data)
    for command_id, attempt in decision.granted.items():
        await hints.poke(subjects.granted(command_id, attempt))
    for worker_id in decision.withdrawn:
        # It is busier than it said, or gone: nothing more is offered to it before it speaks again.
        crowd.forget(worker_id)
    begun = (one.event for one in decision.envelopes if isinstance(one.event, CommandStarted))
    for outcome, count in (
        (MADE, len(decision.offers)),
        (TAKEN, sum(event.command_id in decision.granted for event in begun)),
        (WITHDRAWN, len(decision.withdrawn)),
    ):
        if count:
            instruments.count(names.OFFERS, count, labels={names.OUTCOME: outcome})
