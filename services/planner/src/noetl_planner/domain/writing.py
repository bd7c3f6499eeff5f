"""Writes to `ctx` from outside (language, 18): visible to every later render."""

from noetl_contracts import facts
from noetl_contracts.events import context
from noetl_planner.domain import growth, resizing
from noetl_planner.domain.draft import Draft

WHERE = "(api)"


def write(draft: Draft, fact: facts.CtxWriteRequested) -> None:
    """Accept a write; one that repeats another, or would make `ctx` too large, changes nothing."""
    state = draft.state
    removed = [key for key in fact.removed if key in state.ctx]
    if not fact.patch and not removed:
        return
    patch, refused = growth.carried(draft, fact.patch, step=WHERE)
    if refused is not None:
        return
    draft.emit(
        context.CtxPatched(
            patch=patch,
            removed=removed,
            request_id=fact.request_id,
            requested_by=fact.requested_by,
        )
    )
    resizing.resize_all(draft)
