"""What is asked of a running execution from outside: hold, go on, write to `ctx`."""

from typing import assert_never

from noetl_contracts import facts
from noetl_planner.domain import pausing, writing
from noetl_planner.domain.draft import Draft

Wish = facts.PauseRequested | facts.ResumeRequested | facts.CtxWriteRequested


def grant(draft: Draft, wish: Wish) -> None:
    """Accept a wish; one without a history to act on, or granted before, changes nothing."""
    if draft.state.version == 0 or wish.request_id in draft.state.wishes:
        return
    match wish:
        case facts.PauseRequested():
            pausing.pause(draft, wish)
        case facts.ResumeRequested():
            pausing.resume(draft, wish)
        case facts.CtxWriteRequested():
            writing.write(draft, wish)
        case _:
            assert_never(wish)
