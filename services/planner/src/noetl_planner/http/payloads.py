"""Results by reference: what a `noetl://` locator of this tenant points to."""

from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from litestar import get
from litestar.params import FromQuery, QueryParameter
from msgspec import Struct

from noetl_contracts import codec, locators
from noetl_contracts.errors import LocatorError
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_planner.http import problems
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices, Services
from noetl_storage.errors import NameRefused, PayloadCorrupt, PayloadMissing

RESOLVED_BYTES_MAX = 16 * 1024 * 1024
WINDOW_MAX = 10_000


class Resolved(Struct, frozen=True, kw_only=True):
    """The value behind a reference; of a list, a window."""

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
    """Read the JSON payload behind a reference, lists by windows."""
    reference = _reference(services, ref)
    value = await _read(services, reference)
    if not isinstance(value, list):
        return Resolved(uri=reference.uri, sha256=reference.sha256, data=value)
    return Resolved(
        uri=reference.uri,
        sha256=reference.sha256,
        data=value[offset : offset + limit],
        total=len(value),
        offset=offset,
        has_next=offset + limit < len(value),
    )


def _reference(services: ApiServices, text: str) -> PayloadRef:
    try:
        locator = locators.parse(text)
    except LocatorError as failure:
        raise problems.refused(
            f"the reference does not parse: {failure}",
            hint="give the `uri` of a result's reference",
        ) from failure
    match locator.segments:
        case ("tenant", tenant, "org", organization, "payloads", "sha256", digest):
            is_ours = (tenant, organization) == (services.tenant_id, services.organization_id)
        case _:
            raise problems.refused(
                f"{text[:200]!r} does not point to a payload",
                hint="a payload's locator ends in payloads/sha256/<digest>",
            )
    if not is_ours:
        raise problems.not_found(f"there is no payload {text[:200]!r} in this organization")
    return PayloadRef(uri=text, sha256=digest, media_type=JSON_MEDIA_TYPE, payload_bytes=0)


async def _read(services: ApiServices, reference: PayloadRef) -> Any:
    """Read at most what one answer may hold."""
    data = bytearray()
    try:
        async for piece in services.payloads.stream(reference):
            data += piece
            if len(data) > RESOLVED_BYTES_MAX:
                raise ApiError(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    code="payload_too_large",
                    detail=f"the payload exceeds {RESOLVED_BYTES_MAX} bytes",
                    hint="read it from the payload store",
                )
        return codec.decode(bytes(data))
    except NameRefused as failure:
        raise problems.refused(str(failure)) from failure
    except PayloadMissing as failure:
        raise problems.not_found(f"no payload is stored under {reference.uri}") from failure
    except PayloadCorrupt as failure:
        raise ApiError(
            HTTPStatus.BAD_GATEWAY,
            code="payload_corrupt",
            detail=str(failure),
            hint="restore the object from a backup; its digest does not match",
        ) from failure
    except msgspec.DecodeError as failure:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="payload_not_json",
            detail=f"the payload {reference.sha256} is not JSON",
            hint="read it from the payload store",
        ) from failure


ROUTES = [resolve]
