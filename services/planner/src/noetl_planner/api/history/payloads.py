"""Results by reference: what a `noetl://` locator of this tenant points to."""

from typing import Annotated, Any

from litestar import get
from litestar.params import FromQuery, QueryParameter
from msgspec import Struct

from noetl_contracts import locators
from noetl_contracts.errors import LocatorError
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_planner.api.history import results
from noetl_planner.api.http import problems
from noetl_planner.api.http.services import RequestScope, Services
from noetl_planner.api.lookup import payload_reader
from noetl_planner.api.lookup.payload_reader import WINDOW_MAX, Window


class Resolved(Struct, frozen=True, kw_only=True):
    """The value behind a reference; of a row set, a window. `sha256` is empty when it is inline."""

    uri: str
    sha256: str
    data: Any
    total: int | None = None
    offset: int | None = None
    has_next: bool = False


@get("/result/resolve", tags=["results"])
async def resolve(
    services: Services,
    ref: FromQuery[str],
    offset: Annotated[int, QueryParameter(ge=0)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=WINDOW_MAX)] = 1000,
) -> Resolved:
    """Read the JSON behind a reference, row sets by windows."""
    segments = _parse_segments(ref)
    match segments:
        case ("execution", _, "result", _, _) | ("execution", _, "result", _, _, _):
            window, stored = await results.resolve_result(
                services, segments, offset=offset, limit=limit
            )
            return _view_resolved(ref, "" if stored is None else stored.sha256, window)
        case _:
            reference = _parse_reference(services, ref, segments)
    value = await payload_reader.read_payload(services, reference)
    return _view_resolved(
        reference.uri,
        reference.sha256,
        payload_reader.view_window(value, offset=offset, limit=limit),
    )


def _view_resolved(uri: str, sha256: str, window: Window) -> Resolved:
    return Resolved(
        uri=uri,
        sha256=sha256,
        data=window.data,
        total=window.total,
        offset=window.offset,
        has_next=window.has_next,
    )


def _parse_segments(text: str) -> tuple[str, ...]:
    try:
        return locators.parse_locator(text).segments
    except LocatorError as failure:
        raise problems.build_bad_request_error(
            f"the reference does not parse: {failure}",
            hint="give the `ref` of a result's `_ref`, or the `uri` of a payload",
        ) from failure


def _parse_reference(scope: RequestScope, text: str, segments: tuple[str, ...]) -> PayloadRef:
    match segments:
        case ("tenant", tenant, "org", organization, "payloads", "sha256", digest):
            is_ours = (tenant, organization) == (scope.tenant_id, scope.organization_id)
        case _:
            raise problems.build_bad_request_error(
                f"{text[:200]!r} does not point to a payload",
                hint="a payload's locator ends in payloads/sha256/<digest>",
            )
    if not is_ours:
        raise problems.build_not_found_error(
            f"there is no payload {text[:200]!r} in this organization"
        )
    return PayloadRef(uri=text, sha256=digest, media_type=JSON_MEDIA_TYPE, payload_bytes=0)


ROUTES = [resolve]
