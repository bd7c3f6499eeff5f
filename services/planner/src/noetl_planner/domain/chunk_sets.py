"""What the end of a chunk's activation writes to `ctx`: its step's `set` counts per chunk."""

from typing import Any

from noetl_contracts import facts
from noetl_planner.domain import evaluation, patches
from noetl_planner.domain.draft import Draft
from noetl_playbook import chunks, kept
from noetl_replay.state import CommandState, StepState


def written(draft: Draft, live: CommandState, fact: facts.CommandCompleted) -> dict[str, Any]:
    """Return what a command writes to `ctx`; raises `Refusal` for a template that fails."""
    run = draft.state.runs.get(live.run_id)
    feed = run.feed if run is not None else None
    block = draft.program.steps[live.step].set
    if feed is None or live.item_index is None or not block:
        return fact.patch
    result = StepState(step=live.step, run_id=live.run_id, result=fact.result)
    chunk = feed.open[live.item_index]
    bound = {
        **chunks.names(chunk, evaluation.find(draft)),
        "output": evaluation.output(draft, result),
        live.step: evaluation.view(draft, result),
    }
    names = evaluation.scope(draft, fact.patch, **bound)
    before = kept.overlaid(draft.state.ctx, fact.patch)
    return {**fact.patch, **patches.render_set(draft, block, names, before, step=live.step)}
