"""What every route may answer instead of what it is for, as the API's description has it."""

from collections.abc import Iterable
from http import HTTPStatus

from litestar.openapi import ResponseSpec
from litestar.routes import BaseRoute, HTTPRoute
from msgspec import Struct

from noetl_planner.http import problems

_REFUSALS = {
    HTTPStatus.BAD_REQUEST: "The request makes no sense; `detail` says why.",
    HTTPStatus.FORBIDDEN: "A page of another site asks.",
    HTTPStatus.NOT_FOUND: "There is no such thing for this tenant.",
    HTTPStatus.CONFLICT: "It is not as the request believes.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "There is no room for so much.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "It is understood, and wrong; `diagnostics` names the places.",
    HTTPStatus.SERVICE_UNAVAILABLE: "A server behind the API is away: ask again.",
}


class Problem(Struct, frozen=True, kw_only=True):
    """A refusal by RFC 9457; `code` is for programs, `detail` and `hint` are for people."""

    type: str
    title: str
    status: int
    code: str
    detail: str
    instance: str
    hint: str | None = None


def describe(routes: Iterable[BaseRoute]) -> None:
    """Add the refusals to what handlers say of themselves; what one says already stays."""
    for route in routes:
        handlers = route.route_handlers if isinstance(route, HTTPRoute) else ()
        for handler in handlers:
            handler.responses = {**_responses(), **(handler.responses or {})}


def _responses() -> dict[int, ResponseSpec]:
    return {
        int(status): ResponseSpec(
            data_container=Problem,
            description=why,
            media_type=problems.MEDIA_TYPE,
            generate_examples=False,
        )
        for status, why in _REFUSALS.items()
    }
