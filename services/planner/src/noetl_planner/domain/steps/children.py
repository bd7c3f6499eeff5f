"""Child executions: asked for once, called off with their parent, and what they report.

What an execution tells another goes out with its own events. Should it be lost on the way, a
nudge makes the parent ask again, and a child that has ended answers again.
"""

from noetl_contracts import codec
from noetl_contracts.commands.waits import ChildWait, ParentLink
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import command_events
from noetl_contracts.ids import ExecutionId
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_contracts.status import ExecutionStatus
from noetl_planner.domain.decision.draft import DecisionDraft
from noetl_replay.state import ChildState, CommandState

REQUESTED_BY = "playbook"
ASKED_AGAIN_MAX = 500
# About as often as an execution is nudged.
SILENCE_S = 60


def compute_execution_depth(draft: DecisionDraft) -> int:
    """Return how many ancestors wait for this execution."""
    parent = draft.state.parent
    return parent.depth if parent is not None else 0


def start_child(
    draft: DecisionDraft, command_state: CommandState, wait: ChildWait, *, depth: int
) -> ExecutionId:
    """Ask for a child, or find the one that the same attempt of a task began before."""
    child_state = _find_child(draft, command_state)
    if child_state is not None and child_state.wait.key == wait.key:
        return child_state.child_execution_id
    child_id = draft.new_execution_id()
    draft.append_event(
        command_events.ChildStarted(
            child_execution_id=child_id,
            command_id=command_state.command_id,
            run_id=command_state.run_id,
            step=command_state.step,
            wait=wait,
        )
    )
    _request_child(draft, draft.state.children[child_id], depth=depth, key=f"child/{child_id}")
    return child_id


def _request_child(draft: DecisionDraft, child: ChildState, *, depth: int, key: str) -> None:
    wait = child.wait
    caller = draft.state.commands.get(child.command_id)
    draft.send_fact(
        child.child_execution_id,
        facts.ExecutionRequested(
            path=wait.path,
            version=wait.version,
            workload=wait.workload,
            workload_ref=wait.workload_ref,
            parent_execution_id=draft.state.execution_id,
            requested_by=REQUESTED_BY,
            pool=draft.state.pool,
            priority=draft.state.priority,
            correlation_id=draft.correlation_id,
            parent=ParentLink(
                execution_id=draft.state.execution_id,
                command_id=child.command_id,
                key=wait.key,
                depth=depth,
                return_step=wait.return_step,
                stage_id=caller.stage_id if caller is not None else None,
            ),
        ),
        key=key,
    )


def repeat_child_requests(draft: DecisionDraft) -> None:
    """Repeat requests whose child has not reported: they may not have arrived.

    Of very many children each occasion takes other ones.
    """
    children = list(draft.state.children.values())
    windows = -(-len(children) // ASKED_AGAIN_MAX) or 1
    first = ASKED_AGAIN_MAX * (int(draft.now.timestamp() // SILENCE_S) % windows)
    for child in children[first : first + ASKED_AGAIN_MAX]:
        key = f"child/{child.child_execution_id}/again/{_get_instant_ms(draft)}"
        _request_child(draft, child, depth=compute_execution_depth(draft) + 1, key=key)


def cancel_child_of_command(
    draft: DecisionDraft, command_state: CommandState, *, reason: str
) -> None:
    """Stop the child that a command waits for."""
    child = _find_child(draft, command_state)
    if child is not None and child.wait.is_awaited:
        _cancel_child(draft, child, reason)


def _find_child(draft: DecisionDraft, command_state: CommandState) -> ChildState | None:
    """Return the latest child of a command while it has not ended."""
    return (
        None if command_state.child_id is None else draft.state.children.get(command_state.child_id)
    )


def cancel_children(draft: DecisionDraft, *, reason: str) -> None:
    """Stop every child, also those that nobody waits for."""
    for child in draft.state.children.values():
        _cancel_child(draft, child, reason)


def _cancel_child(draft: DecisionDraft, child: ChildState, reason: str) -> None:
    draft.send_fact(
        child.child_execution_id,
        facts.CancelRequested(reason=reason, requested_by=REQUESTED_BY),
        key=f"child/{child.child_execution_id}/cancel/{_get_instant_ms(draft)}",
    )


def report_to_parent(draft: DecisionDraft, *, is_repeated: bool = False) -> None:
    """Report this execution's end to the command that started it."""
    state = draft.state
    parent = state.parent
    if parent is None:
        return
    is_well = state.status is ExecutionStatus.COMPLETED
    again = f"/again/{_get_instant_ms(draft)}" if is_repeated else ""
    draft.send_fact(
        parent.execution_id,
        facts.ChildEnded(
            command_id=parent.command_id,
            key=parent.key,
            child_execution_id=state.execution_id,
            status=str(state.status),
            result=_select_result(draft, parent) if is_well else None,
            error=state.failure if state.status is ExecutionStatus.FAILED else None,
        ),
        key=f"child/{state.execution_id}/ended{again}",
    )


def repeat_parent_report(draft: DecisionDraft, fact: facts.Fact) -> None:
    """Answer a parent that asks for a child which has ended: the answer may have been lost."""
    if isinstance(fact, facts.ExecutionRequested) and fact.parent is not None:
        report_to_parent(draft, is_repeated=True)


def _select_result(draft: DecisionDraft, parent: ParentLink) -> ResultEnvelope | None:
    state = draft.state
    step_state = state.steps.get(parent.return_step) if parent.return_step is not None else None
    if step_state is not None and step_state.result is not None:
        return step_state.result
    return state.result


def find_child_error(fact: facts.ChildEnded, *, path: str) -> ErrorObject | None:
    """Return what a child's end means to the task that waited for it."""
    child = fact.child_execution_id
    match fact.status:
        case ExecutionStatus.COMPLETED:
            return None
        case ExecutionStatus.CANCELLED:
            return ErrorObject(
                kind="cancelled",
                code="CANCELLED",
                message=f"execution {child} of playbook {path!r} was cancelled",
                details={"execution_id": child},
            )
        case _:
            message = fact.error.message if fact.error is not None else "it gave no reason"
            details = codec.to_builtins(fact.error) if fact.error is not None else {}
            return ErrorObject(
                kind="child_failed",
                code="CHILD_FAILED",
                message=f"execution {child} of playbook {path!r} failed: {message}",
                details={"execution_id": child, "error": details},
            )


def _get_instant_ms(draft: DecisionDraft) -> int:
    """Tell this occasion from others: the stream takes each message once."""
    return int(draft.now.timestamp() * 1000)
