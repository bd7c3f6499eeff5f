"""Messages from outside: callbacks, signals, approvals; durable before they are answered."""

from datetime import datetime
from typing import Annotated, Any

from litestar import Response, get, post
from litestar.openapi import ResponseSpec
from litestar.params import FromPath, JSONBody, QueryParameter
from litestar.status_codes import HTTP_200_OK, HTTP_202_ACCEPTED
from msgspec import Meta, Struct

from noetl_contracts.ledger.records import OpenWait
from noetl_planner.api.http.services import Services
from noetl_planner.api.triggers import inbox

WAITS_MAX = 1000


class ApprovalBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was decided; `by` says who, when the door does not know."""

    decision: Annotated[str, Meta(min_length=1, max_length=200)]
    comment: Annotated[str, Meta(max_length=4000)] | None = None
    data: Any = None
    by: Annotated[str, Meta(max_length=200)] | None = None


class ApprovalView(Struct, frozen=True, kw_only=True):
    """An approval that somebody is asked for."""

    approval_id: str
    execution_id: str
    step: str
    task: str
    title: str | None
    description: str | None
    assignees: list[str]
    options: list[str]
    since: datetime | None


class ApprovalList(Struct, frozen=True, kw_only=True):
    """Approvals that are asked for, the oldest first."""

    approvals: list[ApprovalView]


class Received(Struct, frozen=True, kw_only=True):
    """A message that is kept; `repeated` when it was before."""

    accepted: bool
    repeated: bool


REPEATED = {HTTP_200_OK: ResponseSpec(Received, description="The same message was kept before.")}


@post(
    "/callbacks/{token:str}",
    status_code=HTTP_202_ACCEPTED,
    tags=["messages"],
    responses=REPEATED,
)
async def take_callback(
    services: Services, token: FromPath[str], data: JSONBody[Any]
) -> Response[Received]:
    """Take the answer to submitted work; the token of the work authorizes the caller."""
    return _answer_received(await inbox.keep_callback(services, token, data))


@post(
    "/signals/{correlation_key:path}",
    status_code=HTTP_202_ACCEPTED,
    tags=["messages"],
    responses=REPEATED,
)
async def take_signal(
    services: Services, correlation_key: FromPath[str], data: JSONBody[Any]
) -> Response[Received]:
    """Take a message for the commands that wait, or will wait, for a correlation key."""
    return _answer_received(
        await inbox.keep_signal(services, correlation_key.removeprefix("/"), data)
    )


@post(
    "/approvals/{approval_id:str}",
    status_code=HTTP_202_ACCEPTED,
    tags=["messages"],
    responses=REPEATED,
)
async def decide(
    services: Services, approval_id: FromPath[str], data: JSONBody[ApprovalBody]
) -> Response[Received]:
    """Decide an approval."""
    repeated = await inbox.keep_decision(
        services,
        approval_id,
        decision=data.decision,
        by=data.by,
        comment=data.comment,
        data=data.data,
    )
    return _answer_received(repeated)


@get("/approvals", tags=["messages"])
async def list_approvals(
    services: Services, limit: Annotated[int, QueryParameter(ge=1, le=WAITS_MAX)] = 100
) -> ApprovalList:
    """List the approvals that are asked for."""
    open_waits = await inbox.list_open_approvals(services, waits_max=limit)
    return ApprovalList(approvals=[_view_approval(open_wait) for open_wait in open_waits])


def _answer_received(repeated: bool) -> Response[Received]:  # noqa: FBT001 - the only argument
    status = HTTP_200_OK if repeated else HTTP_202_ACCEPTED
    return Response(Received(accepted=True, repeated=repeated), status_code=status)


def _view_approval(open_wait: OpenWait) -> ApprovalView:
    wait = open_wait.wait
    return ApprovalView(
        approval_id=wait.address.partition("/")[2],
        execution_id=open_wait.execution_id,
        step=open_wait.step,
        task=wait.task,
        title=wait.title,
        description=wait.description,
        assignees=wait.assignees,
        options=wait.options,
        since=open_wait.since,
    )


ROUTES = [take_callback, take_signal, decide, list_approvals]
