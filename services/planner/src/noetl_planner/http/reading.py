"""Reading a payload for an answer, and showing it by windows."""

from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.errors import PayloadKeyUnknown
from noetl_contracts.payloads import PayloadRef
from noetl_planner.http import problems
from noetl_planner.http.problems import ApiError
from noetl_planner.http.services import ApiServices
from noetl_storage import loading
from noetl_storage.encoding import PayloadUnreadable
from noetl_storage.errors import NameRefused, PayloadCorrupt, PayloadMissing

RESOLVED_BYTES_MAX = 16 * 1024 * 1024
WINDOW_MAX = 10_000


class Window(Struct, frozen=True, kw_only=True):
    """A value; of a list, or of a mapping's rows or results, the part that was asked for."""

    data: Any
    total: int | None = None
    offset: int | None = None
    has_next: bool = False


def window(value: Any, *, offset: int, limit: int) -> Window:
    """Show a value, row sets by windows."""
    if isinstance(value, list):
        shown: Any = value[offset : offset + limit]
        return _window(shown, total=len(value), offset=offset, limit=limit)
    for key in ("rows", "results"):
        if isinstance(value, dict) and isinstance(value.get(key), list):
            whole = value[key]
            same = {name for name, item in value.items() if item is whole or item == whole}
            shown = {**value, **dict.fromkeys(same, whole[offset : offset + limit])}
            return _window(shown, total=len(whole), offset=offset, limit=limit)
    return Window(data=value)


def _window(data: Any, *, total: int, offset: int, limit: int) -> Window:
    return Window(data=data, total=total, offset=offset, has_next=offset + limit < total)


async def read(services: ApiServices, reference: PayloadRef) -> Any:
    """Read the value of a payload, at most what one answer may hold; raises an `ApiError`."""
    room = RESOLVED_BYTES_MAX

    async def bytes_of(part: PayloadRef) -> bytes:
        nonlocal room
        data = bytearray()
        async for piece in services.payloads.stream(part):
            data += piece
            if len(data) > room:
                raise ApiError(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    code="payload_too_large",
                    detail=f"the payload exceeds {RESOLVED_BYTES_MAX} bytes",
                    hint="read it from the payload store",
                )
        room -= len(data)
        return bytes(data)

    try:
        return await loading.load(bytes_of, reference, bytes_max=RESOLVED_BYTES_MAX)
    except NameRefused as failure:
        raise problems.refused(str(failure)) from failure
    except PayloadMissing as failure:
        raise problems.not_found(f"no payload is stored under {reference.uri}") from failure
    except PayloadKeyUnknown as failure:
        raise ApiError(
            HTTPStatus.BAD_GATEWAY,
            code="payload_sealed",
            detail=str(failure),
            hint="give the planner the same keys for payloads as the workers",
        ) from failure
    except PayloadCorrupt as failure:
        raise ApiError(
            HTTPStatus.BAD_GATEWAY,
            code="payload_corrupt",
            detail=str(failure),
            hint="restore the object from a backup; its digest does not match",
        ) from failure
    except (msgspec.DecodeError, PayloadUnreadable) as failure:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="payload_not_json",
            detail=f"the payload {reference.sha256} is not JSON",
            hint="read it from the payload store",
        ) from failure
