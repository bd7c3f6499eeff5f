"""The event at a step's end, as arcs and the admission of the next step see it."""

from typing import Any

from noetl_contracts.errors import ErrorObject
from noetl_contracts.status import RunStatus
from noetl_planner.domain import evaluation
from noetl_planner.domain.draft import Draft
from noetl_playbook import aliases, error_view
from noetl_playbook.lookup import Record
from noetl_replay.state import StepState

# What the event of a failure, a loop or a stream has alone.
_SOMETIMES = frozenset({"error", "stats", "chunks"})


def event(
    draft: Draft, step: StepState, *, status: RunStatus, error: ErrorObject | None
) -> dict[str, Any]:
    """Show how a step ended; `payload` is its result (language, 3.7 and 4.3)."""
    has_failed = status is RunStatus.FAILED
    is_loop = draft.program.steps[step.step].loop is not None
    if is_loop:
        name = aliases.LOOP_FAILED if has_failed else aliases.LOOP_DONE
    else:
        name = aliases.ERROR if has_failed else aliases.DONE
    fields: dict[str, Any] = {
        "name": aliases.event_name(name),
        "status": aliases.FAILED if has_failed else aliases.OK,
        "step": step.step,
        "payload": evaluation.view(draft, step),
        "timestamp": draft.now,
    }
    if error is not None:
        fields["error"] = error_view.found(error)
    return Record(fields, optional=_SOMETIMES)
