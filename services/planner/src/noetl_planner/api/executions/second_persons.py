"""Reruns and forks behind an approval by a second person: they must not go around it."""

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from noetl_contracts.status import RunStatus
from noetl_planner.api.http.problems import ApiError
from noetl_playbook.plan import WorkflowGraph
from noetl_replay.state import ExecutionState


def check_approvals(
    model: Mapping[str, Any],
    graph: WorkflowGraph,
    earlier: ExecutionState,
    step: str,
    *,
    is_changed: bool,
) -> None:
    """Refuse to begin behind an approval by `four_eyes` that was not given for this; raises a 403.

    It was given where the earlier execution came through it to the step, and nothing `is_changed`:
    the inputs and the version of the playbook are those that were approved.
    """
    entered = earlier.steps.get(step)
    is_entered = step in earlier.tokens or (entered is not None and entered.run_id is not None)
    for gate in _list_gates(model):
        if gate == step or step not in graph.list_reachable(gate):
            continue
        passed = earlier.steps.get(gate)
        is_passed = passed is not None and passed.status is RunStatus.COMPLETED
        if is_changed or not (is_entered and is_passed):
            raise ApiError(
                HTTPStatus.FORBIDDEN,
                code="four_eyes",
                detail=f"step {step[:200]!r} comes behind the approval of step {gate[:200]!r}, "
                "which a second person gives, and has not given for this",
                hint=f"begin with the approval: from_step {gate[:200]!r}, or --from",
            )


def _list_gates(model: Mapping[str, Any]) -> Iterator[str]:
    """List the steps with an approval by a second person; a template may be one."""
    for step in model.get("workflow", ()):
        if any(task.get("fields", {}).get("four_eyes") for task in step.get("tool", ())):
            yield str(step["step"])
