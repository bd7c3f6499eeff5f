"""What is answered to who asks for an execution: that it was accepted, or how it ended."""

from http import HTTPStatus

from msgspec import Struct

from noetl_planner.http import ending, submission, views
from noetl_planner.http.services import ApiServices
from noetl_planner.http.submission import ExecuteBody


class Answer(Struct, frozen=True, kw_only=True):
    """An answer before it is written."""

    status: HTTPStatus
    content: views.Accepted
    headers: dict[str, str] = {}


async def answered(
    services: ApiServices,
    body: ExecuteBody,
    *,
    key: str | None,
    prefer: str | None,
    client: str,
    correlation_id: str | None = None,
) -> Answer:
    """Have a playbook run; `key`, `prefer` and `correlation_id` are headers of the request.

    `client` is the address that it came from. Raises `ApiError`.
    """
    accepted = await submission.execute(services, body, key, correlation_id=correlation_id)
    within_s = ending.wait_s(prefer)
    over = await ending.ended(services, accepted, within_s=within_s, client=client)
    if over is None:
        return Answer(status=HTTPStatus.ACCEPTED, content=accepted)
    applied = {"Preference-Applied": f"wait={within_s}"}
    return Answer(status=HTTPStatus.OK, content=over, headers=applied)
