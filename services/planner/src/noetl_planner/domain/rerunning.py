"""Reruns: an execution that begins at a step of another one, with what that one had before it."""

from collections.abc import Iterator
from typing import Any

from noetl_contracts import codec, facts
from noetl_contracts.events import execution
from noetl_contracts.payloads import EVENT_INLINE_BYTES_MAX
from noetl_planner.domain.draft import Draft
from noetl_playbook import carried, carried_form


def inherited_of(draft: Draft, rerun: facts.Rerun) -> facts.Inherited:
    """Return what is taken over; of what is stored raises `PayloadNeeded` or `ResultMalformed`."""
    if rerun.inherited_ref is None:
        return rerun.inherited or facts.Inherited()
    stored = draft.value_of(rerun.inherited_ref)
    taken = carried.read_as(stored, facts.Inherited)
    for step in taken.steps:
        if step.result is not None:
            carried_form.check(step.result)
    return taken


def inherit(draft: Draft, taken: facts.Inherited) -> None:
    """Take over `ctx` and results, in parts that are small enough for an event."""
    for part, event in enumerate(_parts(taken)):
        ctx, steps = event
        draft.emit(execution.StateInherited(part=part, ctx=ctx, steps=steps))


def _parts(
    taken: facts.Inherited,
) -> Iterator[tuple[dict[str, Any], list[execution.InheritedStep]]]:
    ctx: dict[str, Any] = {}
    steps: list[execution.InheritedStep] = []
    size = 0
    items: list[tuple[str, Any] | execution.InheritedStep] = [*taken.ctx.items(), *taken.steps]
    for item in items:
        length = len(codec.encode(item))
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
