"""What a request may carry: so long to arrive, and nested so deep."""

import asyncio
import re
from http import HTTPStatus
from typing import Any, cast

from litestar import Request
from litestar.types import HTTPReceiveMessage, Receive

from noetl_contracts import plain
from noetl_planner.http import problems
from noetl_planner.http.problems import ApiError

# The largest body comes through in this time on a slow line; whoever dribbles is not waited for.
BODY_S = 30.0
# A value may be nested as deep as a result, within what carries it.
DEPTH_MAX = plain.DEPTH_MAX + 10
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_AS_LISTS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))


class BoundedRequest(Request[Any, Any, Any]):
    """A request whose body arrives in time and is not nested without an end."""

    _is_bounded = False

    async def body(self) -> bytes:
        """Return the body; raises a 408 or a 422."""
        try:
            async with asyncio.timeout(BODY_S):
                data = await super().body()
        except TimeoutError as late:
            raise too_late() from late
        if not self._is_bounded and "json" in self.headers.get("content-type", ""):
            if is_too_deep(data):
                raise too_deep()
            self._is_bounded = True
        return data

    async def json(self) -> Any:
        """Return the decoded body; raises a 400 for what is not in UTF-8."""
        try:
            return await super().json()
        except UnicodeDecodeError as failure:
            raise problems.refused(f"the body is not JSON in UTF-8: {failure}") from failure


async def first_part(receive: Receive) -> HTTPReceiveMessage:
    """Return what comes first of a request's body; raises a 408."""
    try:
        async with asyncio.timeout(BODY_S):
            return cast("HTTPReceiveMessage", await receive())
    except TimeoutError as late:
        raise too_late() from late


def is_too_deep(data: bytes) -> bool:
    """Tell whether JSON is nested deeper than `DEPTH_MAX`."""
    if data.count(b"[") + data.count(b"{") <= DEPTH_MAX:
        return False
    brackets = _STRING.sub(b"", data).translate(_AS_LISTS, _OTHERS)
    for _ in range(DEPTH_MAX):
        # Each turn takes the innermost level away.
        brackets = brackets.replace(b"[]", b"")
        if not brackets:
            return False
    # What is not balanced is no JSON, and its reader says so.
    return b"[]" in brackets or b"[" * DEPTH_MAX in brackets


def too_late() -> ApiError:
    """Say that a body did not arrive in time; the connection is of no more use."""
    return ApiError(
        HTTPStatus.REQUEST_TIMEOUT,
        code="body_too_slow",
        detail=f"the body did not arrive within {BODY_S:g} s",
        hint="send the body at once, and large values by way of the payload store",
        headers={"Connection": "close"},
    )


def too_deep() -> ApiError:
    """Say that a body is nested without an end."""
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        code="nested_too_deep",
        detail=f"the body is nested deeper than {DEPTH_MAX} levels",
        hint="flatten it, or send it as text",
    )
