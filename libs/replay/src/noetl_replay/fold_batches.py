"""What events mean to batches: commands that run several items of a loop, one after another."""

from msgspec import UNSET

from noetl_contracts.commands.task_metrics import ELAPSED_MS
from noetl_contracts.events import command_events, loop_events, step_events
from noetl_replay import fold_commands
from noetl_replay.fold_loops import count_outcome, touch_loop
from noetl_replay.state import CommandState, ExecutionState, LoopState, ReturnedItem

# How long a batch should take. Items that are given back take as long at least.
BATCH_US = 250_000
# The part of a difference that one item makes is its inverse.
_SMOOTHING = 8


def begin_items(state: ExecutionState, event: command_events.CommandIssued) -> None:
    """Note which items a new command runs: the loop has handed them out."""
    if event.item_index is None or (loop_state := touch_loop(state, event.run_id)) is None:
        return
    items = event.batch or [event.item_index]
    if event.batch:
        state.commands[event.command_id].batch = list(items)
        loop_state.next_index = max(loop_state.next_index, items[-1] + 1)
    if loop_state.returned is not UNSET:
        for index in items:
            loop_state.returned.pop(index, None)


def end_batch_item(
    state: ExecutionState,
    event: step_events.CallDone | step_events.CallError,
    in_batch: step_events.InBatch,
) -> None:
    """Account an item of a batch; the last one of a command frees its place."""
    fold_commands.add_run_metrics(state, event.run_id, in_batch.tasks)
    loop_state = touch_loop(state, event.run_id)
    if loop_state is None:
        return
    count_outcome(loop_state, event)
    note_item_time(loop_state, in_batch.elapsed_ms)
    command_state = state.commands.get(in_batch.command_id)
    if command_state is None or command_state.batch is UNSET or event.item_index is None:
        return
    state.changes.commands[command_state.command_id] = command_state
    # Of the items that are left none was begun more than once before this one.
    command_state.losses = min(command_state.losses, 1)
    take_item(loop_state, command_state, event.item_index)


def take_item(loop_state: LoopState, command_state: CommandState, index: int) -> None:
    """Take an item off a batch; without any left the command is no longer in flight."""
    assert command_state.batch is not UNSET, "only batches come here"
    command_state.batch.remove(index)
    if not command_state.batch:
        loop_state.in_flight -= 1


def return_items(state: ExecutionState, event: loop_events.LoopItemsReturned) -> None:
    """Take the items off their batch: the loop hands them out again, one by one."""
    loop_state = touch_loop(state, event.run_id)
    command_state = state.commands.get(event.command_id)
    if loop_state is None or command_state is None or command_state.batch is UNSET:
        return
    state.changes.commands[command_state.command_id] = command_state
    returned = {} if loop_state.returned is UNSET else loop_state.returned
    for index in event.items:
        take_item(loop_state, command_state, index)
        returned[index] = ReturnedItem(attempt=event.attempt, losses=event.losses)
    loop_state.returned = returned
    took_us = 0 if loop_state.item_us is UNSET else loop_state.item_us
    loop_state.item_us = max(took_us, BATCH_US)


def note_item_time(loop_state: LoopState, elapsed_ms: object) -> None:
    """Remember how long items take, of which the latest count most; lost ones tell nothing."""
    if not isinstance(elapsed_ms, int) or elapsed_ms < 0:
        return
    took_us, before = elapsed_ms * 1_000, loop_state.item_us
    loop_state.item_us = took_us if before is UNSET else before + (took_us - before) // _SMOOTHING


def note_command_time(state: ExecutionState, event: command_events.CommandCompleted) -> None:
    """Remember how long the item of a command for one item took."""
    command_state = state.commands[event.command_id]
    if command_state.item_index is None or command_state.batch is not UNSET:
        return
    run = state.runs.get(event.run_id)
    if run is not None and run.loop is not None and run.loop.may_batch is not UNSET:
        note_item_time(run.loop, event.metrics.get(ELAPSED_MS))
