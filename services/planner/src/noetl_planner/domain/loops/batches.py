"""Batches: items of a parallel loop that one command runs, one after another.

Each item keeps an outcome of its own in the history. A batch saves what a command costs: an issue,
a delivery, a start and an end for each item. Its length follows from how long items take, so that a
batch takes about a quarter of a second.
"""

from datetime import datetime, timedelta

from msgspec import UNSET

from noetl_contracts import ids
from noetl_contracts.commands.command_work import IO_LANE
from noetl_contracts.commands.task_metrics import ELAPSED_MS
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import command_events, loop_events, step_events
from noetl_contracts.ids import CommandId, WorkerId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_contracts.status import CommandStatus
from noetl_planner.domain.decision import ctx_writes
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_planner.domain.loops import reruns
from noetl_planner.domain.steps import commands, policies, pools
from noetl_playbook.model.playbook import Loop, Step
from noetl_replay.fold_batches import BATCH_US
from noetl_replay.state import CommandState, LoopState, RunState

ITEMS_MAX = 256
# How many commands there are for each place of a worker: one that runs, and one that comes next.
COMMANDS_PER_PLACE = 2
# Items that have not ended after this time are not worth a batch.
_MEASURING = timedelta(microseconds=BATCH_US)


def may_batch_items(step: Step, loop: Loop) -> bool:
    """Tell whether commands of a loop may run several items.

    Not where an item waits for others, where a lost worker ends an item, or where nothing may start
    after a failure.
    """
    return (
        loop.spec.mode == "parallel"
        and loop.spec.max_attempts > 1
        and policies.select_failure_policy(step).mode != "fail_fast"
        and not any(task.kind in pools.PARKING or task.kind == "spark" for task in step.tool)
    )


def issue_items(draft: DecisionDraft, run: RunState, loop: LoopState, *, attempts_max: int) -> None:
    """Issue items while fewer commands than allowed are in flight."""
    if loop.may_batch is UNSET:
        while loop.in_flight < loop.max_in_flight:
            indexes = reruns.find_next_items(draft, run, loop, 1)
            if not indexes:
                return
            commands.issue_item(draft, run, indexes[0], attempts_max=attempts_max)
        return
    places = _count_places(draft, run)
    in_flight_max = _choose_in_flight(draft, run, loop, places)
    while loop.in_flight < in_flight_max:
        if loop.returned is not UNSET and loop.returned:
            _issue_returned_item(draft, run, loop, attempts_max=attempts_max)
            continue
        size = _choose_batch_size(loop, min(places, loop.max_in_flight))
        indexes = reruns.find_next_items(draft, run, loop, size)
        if not indexes:
            return
        # A batch reads its items as one slice of their collection.
        indexes = [index for index in indexes if index - indexes[0] < ITEMS_MAX]
        if len(indexes) == 1:
            commands.issue_item(draft, run, indexes[0], attempts_max=attempts_max)
        else:
            commands.issue_batch(draft, run, indexes, attempts_max=attempts_max)


def has_items_left(draft: DecisionDraft, run: RunState, loop: LoopState) -> bool:
    """Tell whether items wait to be issued; raises `PayloadNeeded`."""
    is_returned = loop.returned is not UNSET and bool(loop.returned)
    return is_returned or bool(reruns.find_next_items(draft, run, loop, 1))


def find_measuring_end(draft: DecisionDraft, loop: LoopState) -> datetime | None:
    """Return until when fewer items are issued than allowed, as none has told how long it takes."""
    if loop.may_batch is UNSET or loop.item_us is not UNSET or loop.next_index >= loop.total:
        return None
    end = loop.started_at + _MEASURING
    return end if end > draft.now else None


def _count_places(draft: DecisionDraft, run: RunState) -> int:
    """Count the commands that the workers of a step's pool can run at once.

    0 where nobody knows, where a worker of an earlier release could not read a batch, or where
    workers ask over HTTP.
    """
    pool, _ = pools.select_pool_and_lane(draft, run.step)
    if pool in draft.limits.pools.by_http:
        return 0
    beats = [beat for beat in draft.workers if beat.pool == pool and IO_LANE in beat.lanes]
    if not all(beat.takes_batches for beat in beats):
        return 0
    return sum(beat.capacity for beat in beats)


def _choose_in_flight(draft: DecisionDraft, run: RunState, loop: LoopState, places: int) -> int:
    """Choose how many commands may be in flight; those that wait take no place of a worker.

    What no worker has room for stays here, where batches can still be made of it, as long as items
    are quick. Else it is sent out, for an autoscaler counts what waits there.
    """
    if loop.item_us is UNSET:
        is_quick = find_measuring_end(draft, loop) is not None
    else:
        is_quick = loop.item_us * 2 <= BATCH_US
    if not places or not is_quick:
        return loop.max_in_flight
    usual = places * COMMANDS_PER_PLACE
    if loop.in_flight < usual:
        return min(loop.max_in_flight, usual)
    waiting = sum(
        command.run_id == run.run_id and command.status is CommandStatus.PARKED
        for command in draft.state.commands.values()
    )
    return min(loop.max_in_flight, usual + waiting)


def _choose_batch_size(loop: LoopState, places: int) -> int:
    """Choose how many items the next command runs: a small share of what is left, and of time."""
    if not places or loop.item_us is UNSET:
        return 1
    items_left = loop.total - loop.success - loop.failed - loop.cancelled
    by_time = BATCH_US // loop.item_us if loop.item_us else ITEMS_MAX
    return max(1, min(ITEMS_MAX, by_time, items_left // (places * COMMANDS_PER_PLACE)))


def _issue_returned_item(
    draft: DecisionDraft, run: RunState, loop: LoopState, *, attempts_max: int
) -> None:
    assert loop.returned is not UNSET, "the caller has looked"
    index = min(loop.returned)
    item = loop.returned[index]
    command_id = commands.issue_item(draft, run, index, attempts_max=attempts_max)
    _raise_attempt(draft, command_id, item.attempt, losses=item.losses)


def _raise_attempt(
    draft: DecisionDraft, command_id: CommandId, attempt: int, *, losses: int
) -> None:
    """Let a command begin after the attempts of the batch, which may have begun its item."""
    for number in range(1, attempt):
        reason = command_events.LOST_IN_BATCH if number <= losses else command_events.IN_BATCH
        commands.reissue_command(draft, draft.state.commands[command_id], reason)


def end_item(
    draft: DecisionDraft,
    command_state: CommandState,
    fact: facts.CommandCompleted | facts.CommandFailed,
) -> bool:
    """Record the outcome of one item of a batch; False if it is known already."""
    index = fact.item_index
    if index is UNSET or command_state.batch is UNSET or index not in command_state.batch:
        return False
    patch, refused = ctx_writes.store_ctx_patch(draft, fact.patch, step=command_state.step)
    in_batch = step_events.InBatch(
        command_id=command_state.command_id,
        attempt=command_state.attempt,
        worker_id=fact.worker_id,
        tasks=fact.tasks,
        elapsed_ms=_read_elapsed(fact),
    )
    if isinstance(fact, facts.CommandCompleted) and refused is None:
        draft.append_event(
            step_events.CallDone(
                step=command_state.step,
                run_id=command_state.run_id,
                command_id=_build_item_id(command_state, index),
                result=fact.result,
                patch=patch,
                item_index=index,
                notes=fact.notes,
                tries=fact.tries,
                in_batch=in_batch,
            )
        )
    else:
        error = fact.error if isinstance(fact, facts.CommandFailed) else refused
        assert error is not None, "an item that did not succeed has failed"
        _append_failure(
            draft,
            command_state,
            index,
            error,
            in_batch=in_batch,
            result=fact.result if isinstance(fact, facts.CommandFailed) else None,
            patch={} if refused is not None else patch,
        )
    _complete_ended_batch(draft, command_state, fact.worker_id)
    return True


def _read_elapsed(fact: facts.CommandCompleted | facts.CommandFailed) -> int | None:
    """Return how long an item took, where its worker tells; a failed one does not."""
    elapsed_ms = fact.metrics.get(ELAPSED_MS) if isinstance(fact, facts.CommandCompleted) else None
    return elapsed_ms if isinstance(elapsed_ms, int) and elapsed_ms >= 0 else None


def fail_batch(
    draft: DecisionDraft,
    command_state: CommandState,
    error: ErrorObject,
    *,
    worker_id: WorkerId | None,
) -> None:
    """Let the first item that is left fail, for it was the one that ran; the others run alone.

    The command itself has to be ended then.
    """
    assert command_state.batch is not UNSET, "only batches come here"
    first, *others = command_state.batch
    _fail_item(draft, command_state, first, error, worker_id=worker_id)
    if others:
        _append_returned(draft, command_state, others, worker_id, min(command_state.losses, 1))


def return_items(draft: DecisionDraft, fact: facts.ItemsReturned) -> CommandState | None:
    """Take back what a worker has not begun of a batch; None if it is not its batch any more."""
    command_state = commands.find_live_command(
        draft, fact.command_id, fact.attempt, fact="items_returned", worker_id=fact.worker_id
    )
    if command_state is None or command_state.batch is UNSET:
        return None
    given_back = frozenset(fact.items)
    returned = [index for index in command_state.batch if index in given_back]
    if returned:
        losses = min(command_state.losses, 1)
        _append_returned(draft, command_state, returned, fact.worker_id, losses)
    _complete_ended_batch(draft, command_state, fact.worker_id)
    return command_state


def move_waiting_item(
    draft: DecisionDraft, command_state: CommandState, fact: facts.CommandParked
) -> CommandState | None:
    """Give an item of a batch that waits a command of its own; None if it is known already."""
    index = fact.item_index
    if index is UNSET or command_state.batch is UNSET or index not in command_state.batch:
        return None
    run = draft.state.runs[command_state.run_id]
    attempt, losses = command_state.attempt, command_state.losses
    _append_returned(draft, command_state, [index], fact.worker_id, losses)
    _complete_ended_batch(draft, command_state, fact.worker_id)
    item_id = commands.issue_item(draft, run, index, attempts_max=command_state.attempts_max)
    _raise_attempt(draft, item_id, attempt, losses=losses)
    del draft.to_send[item_id]
    moved = draft.state.commands[item_id]
    commands.start_command(draft, moved, fact.worker_id)
    return moved


def _append_returned(
    draft: DecisionDraft,
    command_state: CommandState,
    items: list[int],
    worker_id: WorkerId | None,
    losses: int,
) -> None:
    draft.append_event(
        loop_events.LoopItemsReturned(
            step=command_state.step,
            run_id=command_state.run_id,
            command_id=command_state.command_id,
            attempt=command_state.attempt,
            worker_id=worker_id,
            items=items,
            losses=losses,
        )
    )


def lose_batch(draft: DecisionDraft, command_state: CommandState, *, error: ErrorObject) -> bool:
    """Let the item fail that used up the attempts of its batch; True if others are left.

    Attempts after the first report each item before they begin the next, so that only the first
    that is left can have been running.
    """
    assert command_state.batch is not UNSET, "only batches come here"
    _fail_item(
        draft, command_state, command_state.batch[0], error, worker_id=command_state.worker_id
    )
    if not command_state.batch:
        worker_id = command_state.worker_id or WorkerId("")
        commands.complete_command(draft, command_state, worker_id=worker_id, metrics={})
        return False
    return True


def _fail_item(
    draft: DecisionDraft,
    command_state: CommandState,
    index: int,
    error: ErrorObject,
    *,
    worker_id: WorkerId | None,
) -> None:
    in_batch = step_events.InBatch(
        command_id=command_state.command_id, attempt=command_state.attempt, worker_id=worker_id
    )
    _append_failure(draft, command_state, index, error, in_batch=in_batch)


def _append_failure(
    draft: DecisionDraft,
    command_state: CommandState,
    index: int,
    error: ErrorObject,
    *,
    in_batch: step_events.InBatch,
    result: ResultEnvelope | None = None,
    patch: dict[str, object] | None = None,
) -> None:
    draft.append_event(
        step_events.CallError(
            step=command_state.step,
            run_id=command_state.run_id,
            command_id=_build_item_id(command_state, index),
            error=error,
            result=result,
            patch=patch or {},
            item_index=index,
            in_batch=in_batch,
        )
    )


def _complete_ended_batch(
    draft: DecisionDraft, command_state: CommandState, worker_id: WorkerId
) -> None:
    if not command_state.batch:
        commands.complete_command(draft, command_state, worker_id=worker_id, metrics={})


def _build_item_id(command_state: CommandState, index: int) -> CommandId:
    """Name an item of a batch as a command for it alone is named."""
    return ids.derive_command_id(command_state.run_id, f"item-{index}")
