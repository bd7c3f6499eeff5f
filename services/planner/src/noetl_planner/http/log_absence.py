"""Why there are no lines of an execution or of one of its steps: told instead of an empty page."""

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.log_chunks import KINDS_WITH_LOG
from noetl_contracts.status import RunStatus
from noetl_planner.http import (
    histories,
    views,
)
from noetl_planner.http.services import ApiServices
from noetl_planner.http.views import Row
from noetl_playbook.model import Playbook
from noetl_playbook.plan import steps_by_name

_NAME_SHOWN = 200
_LIVE = frozenset({RunStatus.PENDING, RunStatus.RUNNING})


async def explain_absence(services: ApiServices, row: Row, step: str | None) -> str:
    """Say in one sentence why nothing was written."""
    is_over = views.is_terminal(row)
    if step is None:
        return "no task wrote anything" if is_over else "no task has written anything so far"
    state = await histories.folded(services, ExecutionId(row["execution_id"]))
    silent = await _silent_kinds(services, row, step, version=state.catalog_version)
    found = state.steps.get(step)
    shown = f"step {step[:_NAME_SHOWN]!r}"
    if found is None or found.run_id is None:
        text = f"{shown} did not run" if is_over else f"{shown} has not begun"
    elif found.status in _LIVE and not is_over:
        text = f"{shown} has written nothing so far"
    else:
        text = f"{shown} wrote nothing"
    return text if not silent else f"{text}: tasks of kind {', '.join(silent)} write no lines"


async def _silent_kinds(services: ApiServices, row: Row, step: str, *, version: int) -> list[str]:
    """List the kinds of a step whose tasks write no lines, where none of its tasks does.

    None are listed of a playbook that is not kept any more, or that has no such step.
    """
    entry = await services.catalog.find(row["path"], version=version or None, **services.place)
    if entry is None:
        return []
    steps = steps_by_name(codec.convert(entry.model, Playbook))
    if step not in steps:
        return []
    kinds = {task.kind for task in steps[step].tool}
    return [] if kinds & KINDS_WITH_LOG else sorted(kinds)
