"""Requests that control a running execution: cancel, pause, resume, write to its `ctx`."""

from collections.abc import Callable
from http import HTTPStatus

from noetl_contracts.ids import ExecutionId
from noetl_contracts.requests.facts import CancelRequested, Fact, PauseRequested, ResumeRequested
from noetl_planner.api.executions import start_requests
from noetl_planner.api.executions.start_requests import PRODUCER
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import execution_lookup, views

# Makes the fact that asks for something from the identity of its request.
BuildFact = Callable[[str], Fact]


async def request_cancel(
    services: ApiServices, text: str, reason: str | None, *, cascade: bool = True
) -> views.ControlAnswer:
    """Commit a request to cancel an execution; return the status of one that has ended."""
    fact = CancelRequested(reason=reason, requested_by=PRODUCER, cascade=cascade)
    return await submit_control(services, text, "cancel", lambda _: fact)


async def request_pause(
    services: ApiServices, text: str, reason: str | None
) -> views.ControlAnswer:
    """Commit a request to pause an execution; return the status of one that has ended."""
    return await submit_control(
        services,
        text,
        "pause",
        lambda name: PauseRequested(request_id=name, reason=reason, requested_by=PRODUCER),
    )


async def request_resume(services: ApiServices, text: str) -> views.ControlAnswer:
    """Commit a request to resume an execution; return the status of one that has ended."""
    return await submit_control(
        services,
        text,
        "resume",
        lambda name: ResumeRequested(request_id=name, requested_by=PRODUCER),
    )


async def submit_control(
    services: ApiServices, text: str, kind: str, build_fact: BuildFact
) -> views.ControlAnswer:
    """Commit a control request for an execution, unless it has ended."""
    row = await execution_lookup.get_execution_row(services, text)
    execution_id = ExecutionId(row["execution_id"])
    is_over = views.is_terminal(row)
    if not is_over:
        # A repeated wish is its own request: the first may have come before there was a history.
        name = f"{kind}-{execution_id}-{services.mint()}"
        await start_requests.submit_request(
            services.messages,
            start_requests.build_request(
                services, build_fact(name), execution_id, request_id=name, kind=kind
            ),
        )
    return views.ControlAnswer(
        execution_id=execution_id, status=row["status"], accepted=not is_over
    )


def check_accepted_answer(answer: views.ControlAnswer) -> None:
    """Refuse what came too late; raises a 409."""
    if not answer.accepted:
        raise ApiError(
            HTTPStatus.CONFLICT,
            code="execution_ended",
            detail=f"execution {answer.execution_id} has ended: it is {answer.status}",
            hint="what has ended never changes; run it again: noetl rerun",
        )
