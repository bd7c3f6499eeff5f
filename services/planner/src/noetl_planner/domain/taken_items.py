"""Items that a loop takes over from an earlier execution: they count as done and do not run."""

from bisect import bisect_left

from noetl_contracts.slicing import Cut
from noetl_contracts.taken_items import TakenItems
from noetl_planner.domain.draft import Draft
from noetl_replay.state import ExecutionState, LoopState, RunState


def find_taken(state: ExecutionState, run: RunState) -> TakenItems | None:
    """Return what a run takes over: only the first run of the step that a rerun begins with."""
    source = state.source
    if source is None or source.items is None:
        return None
    return source.items if run.activation == 1 and run.step == source.step else None


def find_next_item(draft: Draft, run: RunState, loop: LoopState) -> int | None:
    """Return the item to issue next, or None after the last; raises `PayloadNeeded`."""
    taken = find_taken(draft.state, run)
    if taken is None:
        return loop.next_index if loop.next_index < loop.total else None
    todo: list[int] = draft.value_of(taken.todo_ref)
    place = bisect_left(todo, loop.next_index)
    return todo[place] if place < len(todo) else None


def find_next_unit(draft: Draft, run: RunState, loop: LoopState, cut: Cut) -> int | None:
    """Return the unit to hand out next, or None after the last; raises `PayloadNeeded`."""
    if loop.next_index >= cut.units:
        return None
    taken = find_taken(draft.state, run)
    if taken is None:
        return loop.next_index
    offsets: list[int] = draft.value_of(taken.todo_ref)["offsets"]
    # The last offset that is where the next unit begins is that of a unit with rows.
    begins_at = offsets[loop.next_index]
    if begins_at >= offsets[-1]:
        return None
    return bisect_left(offsets, begins_at + 1) - 1


def count_items(state: ExecutionState, run: RunState, cut: Cut) -> int:
    """Return how many items the whole collection of a cut loop has."""
    taken = find_taken(state, run)
    return cut.items if taken is None or taken.frames is None else taken.frames.cut.items
