"""Reruns: what an execution inherits from the earlier one, and which loop it begins with."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.loop_collections import CollectionCut, TakenItems
from noetl_contracts.events import execution_events
from noetl_contracts.payloads import EVENT_INLINE_BYTES_MAX
from noetl_contracts.requests import facts
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_playbook.model.playbook import Step
from noetl_playbook.plan import WorkflowGraph
from noetl_playbook.views import result_envelope
from noetl_replay.state import ExecutionState, LoopState, RunState


def load_inherited(draft: DecisionDraft, rerun: facts.Rerun) -> facts.InheritedState:
    """Return what is taken over; of what is stored raises `PayloadNeeded` or `ResultMalformed`."""
    if rerun.inherited_ref is None:
        return rerun.inherited or facts.InheritedState()
    stored = draft.get_stored_value(rerun.inherited_ref)
    inherited_state = result_envelope.convert_stored(stored, facts.InheritedState)
    for step in inherited_state.steps:
        if step.result is not None:
            result_envelope.check_result_envelope(step.result)
    return inherited_state


def append_inherited(draft: DecisionDraft, inherited_state: facts.InheritedState) -> None:
    """Take over `ctx` and results, in parts that are small enough for an event."""
    for part, event in enumerate(_split_inherited(inherited_state)):
        ctx, steps = event
        draft.append_event(execution_events.StateInherited(part=part, ctx=ctx, steps=steps))


def _split_inherited(
    inherited_state: facts.InheritedState,
) -> Iterator[tuple[dict[str, Any], list[execution_events.InheritedStep]]]:
    ctx: dict[str, Any] = {}
    steps: list[execution_events.InheritedStep] = []
    size = 0
    items: list[tuple[str, Any] | execution_events.InheritedStep] = [
        *inherited_state.ctx.items(),
        *inherited_state.steps,
    ]
    for item in items:
        length = len(codec.encode_json(item))
        if size and size + length > EVENT_INLINE_BYTES_MAX:
            yield ctx, steps
            ctx, steps, size = {}, [], 0
        if isinstance(item, tuple):
            ctx[item[0]] = item[1]
        else:
            steps.append(item)
        size += length
    if size:
        yield ctx, steps


def find_taken_items(state: ExecutionState, run: RunState) -> TakenItems | None:
    """Return what a run takes over: only the first run of the step that a rerun begins with."""
    source = state.source
    if source is None or source.items is None:
        return None
    return source.items if run.activation == 1 and run.step == source.step else None


def find_next_items(
    draft: DecisionDraft, run: RunState, loop: LoopState, count: int
) -> Sequence[int]:
    """Return the next items that were never issued, so many at most; raises `PayloadNeeded`."""
    taken_items = find_taken_items(draft.state, run)
    if taken_items is None:
        return range(loop.next_index, min(loop.total, loop.next_index + count))
    todo: list[int] = draft.get_stored_value(taken_items.todo_ref)
    place = bisect_left(todo, loop.next_index)
    return todo[place : place + count]


def find_next_unit(
    draft: DecisionDraft, run: RunState, loop: LoopState, cut: CollectionCut
) -> int | None:
    """Return the unit to hand out next, or None after the last; raises `PayloadNeeded`."""
    if loop.next_index >= cut.units:
        return None
    taken_items = find_taken_items(draft.state, run)
    if taken_items is None:
        return loop.next_index
    offsets: list[int] = draft.get_stored_value(taken_items.todo_ref)["offsets"]
    # The last offset that is where the next unit begins is that of a unit with rows.
    begins_at = offsets[loop.next_index]
    if begins_at >= offsets[-1]:
        return None
    return bisect_left(offsets, begins_at + 1) - 1


def count_all_items(state: ExecutionState, run: RunState, cut: CollectionCut) -> int:
    """Return how many items the whole collection of a cut loop has."""
    taken_items = find_taken_items(state, run)
    return (
        cut.items
        if taken_items is None or taken_items.frames is None
        else taken_items.frames.cut.items
    )


class LoopOutcome(Struct, frozen=True, kw_only=True):
    """What became of the latest epoch of a step's loop; `began_at` is a position of the history."""

    step: str
    began_at: int
    total: int
    completed: int
    failed: int
    mode: str
    is_framed: bool = False
    has_cursor: bool = False
    is_cut_inside: bool = False

    @property
    def unfinished_units(self) -> int:
        """Count units that did not complete: a cursor has none but those that failed."""
        return self.failed if self.has_cursor else self.total - self.completed


class LoopChoiceError(Exception):
    """There is no loop to begin with, or several, or one whose items cannot run alone."""

    def __init__(self, code: str, detail: str, hint: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.hint = hint


def choose_failed_loop(
    loops: Sequence[LoopOutcome], graph: WorkflowGraph, *, from_step: str | None = None
) -> LoopOutcome:
    """Choose the loop to begin with: the one named, else the first that has items to run.

    Raises `LoopChoiceError`.
    """
    open_loops = sorted(
        (loop for loop in loops if loop.unfinished_units > 0), key=lambda loop: loop.began_at
    )
    chosen = next((loop for loop in open_loops if from_step in (None, loop.step)), None)
    if chosen is None:
        of_step = "" if from_step is None else f" of step {from_step!r}"
        raise LoopChoiceError(
            "no_failed_items",
            f"no loop{of_step} has items that did not complete",
            "noetl status ID shows the loops; noetl rerun ID --from STEP begins at any step",
        )
    beside = [
        loop.step
        for loop in open_loops
        if loop is not chosen and not graph.can_reach(chosen.step, loop.step)
    ]
    if beside and from_step is None:
        raise LoopChoiceError(
            "several_failed_loops",
            f"the loops of {', '.join(map(repr, [chosen.step, *beside]))} have items that did not "
            f"complete, and {chosen.step!r} does not lead to all of them",
            "name one of them with from_step (--from STEP): what the others gave is taken over as "
            "it is",
        )
    _check_loop_kind(chosen)
    return chosen


def check_loop_definition(chosen: LoopOutcome, step: Step) -> None:
    """Refuse a version of the step in which its loop has another form; raises `LoopChoiceError`."""
    loop = step.loop
    is_framed = loop is not None and (
        loop.spec.mode not in {"sequential", "parallel"} or loop.spec.policy.exec == "local"
    )
    if loop is None or loop.spec.mode != chosen.mode or is_framed != chosen.is_framed:
        raise LoopChoiceError(
            "loop_changed",
            f"the loop of step {chosen.step!r} has another form in this version of the playbook",
            "run the version that ran then (pinned), or all items: --from STEP",
        )


def _check_loop_kind(chosen: LoopOutcome) -> None:
    way_out = f"run the loop again: noetl rerun ID --from {chosen.step}"
    if chosen.has_cursor:
        raise LoopChoiceError(
            "items_not_repeatable",
            f"step {chosen.step!r} claims its rows from a source, which knows what became of them",
            f"make the rows that failed claimable there, then {way_out}; it claims these alone",
        )
    if chosen.is_cut_inside:
        raise LoopChoiceError(
            "items_not_repeatable",
            f"one worker cuts the loop of step {chosen.step!r} into chunks or shards, and of their "
            "items there is no record",
            way_out,
        )
