"""What a request may carry: so long to arrive, and nested so deep."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from itertools import accumulate
from typing import Any, cast

from litestar import Request, Response
from litestar.response import Stream
from litestar.types import HTTPReceiveMessage, Receive

from noetl_chassis import redaction
from noetl_contracts import codec, json_values
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError

# Time limit for a request's body: on a slow line the largest body takes less.
BODY_S = 30.0
# A value may be nested as deep as a result, within what carries it.
DEPTH_MAX = json_values.DEPTH_MAX + 10
# Lists and mappings of one body: making so many values holds the event loop for a moment only.
HOLDERS_MAX = 200_000
# So much is looked at between two turns of the event loop.
_CHUNK_BYTES = 64 * 1024
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_STEP_BY_BRACKET = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class BoundedRequest(Request[Any, Any, Any]):
    """A request whose body arrives in time and is not nested without an end."""

    _is_bounded = False

    async def body(self) -> bytes:
        """Return the body; raises a 408 or a 422."""
        try:
            async with asyncio.timeout(BODY_S):
                data = await super().body()
        except TimeoutError as late:
            raise build_late_body_error() from late
        if not self._is_bounded and "json" in self.headers.get("content-type", ""):
            if await is_too_deep(data):
                raise build_too_deep_error()
            if await _has_too_many_holders(data):
                raise build_too_many_values_error()
            self._is_bounded = True
        return data

    async def json(self) -> Any:
        """Return the decoded body; raises a 400 for what is not in UTF-8."""
        # Read at once here, and decoded below without a collector that walks all memory meanwhile.
        await self.body()
        try:
            with _pause_collector():
                return await super().json()
        except UnicodeDecodeError as failure:
            raise problems.build_bad_request_error(
                f"the body is not JSON in UTF-8: {failure}"
            ) from failure


@contextmanager
def _pause_collector() -> Iterator[None]:
    """Collect no garbage while the block makes many values, none of which is any."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


async def receive_first_part(receive: Receive) -> HTTPReceiveMessage:
    """Return what comes first of a request's body; raises a 408."""
    try:
        async with asyncio.timeout(BODY_S):
            return cast("HTTPReceiveMessage", await receive())
    except TimeoutError as late:
        raise build_late_body_error() from late


async def is_too_deep(data: bytes) -> bool:
    """Tell whether JSON is nested deeper than `DEPTH_MAX`; ends where it is for the first time."""
    if data.count(b"[") + data.count(b"{") <= DEPTH_MAX:
        return False
    depth = 0
    async for brackets in _iterate_brackets(data):
        steps = map(_STEP_BY_BRACKET.__getitem__, brackets)
        for reached in accumulate(steps, initial=depth):
            if reached > DEPTH_MAX:
                return True
        depth = reached
    return False


async def _has_too_many_holders(data: bytes) -> bool:
    if data.count(b"[") + data.count(b"{") <= HOLDERS_MAX:
        return False
    holders = 0
    async for brackets in _iterate_brackets(data):
        holders += brackets.count(b"[") + brackets.count(b"{")
    return holders > HOLDERS_MAX


async def _iterate_brackets(data: bytes) -> AsyncIterator[bytes]:
    """Yield what opens and closes outside of texts, and let others run between the parts."""
    begin, is_inside = 0, False
    while begin < len(data):
        chunk = data[begin : begin + _CHUNK_BYTES]
        # What a backslash escapes is not parted from it.
        chunk = chunk[: len(chunk) - _count_trailing_backslashes(chunk) % 2] or chunk
        begin += len(chunk)
        parts = chunk.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(parts[is_inside::2]).translate(None, _OTHERS)
        is_inside ^= len(parts) % 2 == 0
        if begin < len(data):
            await asyncio.sleep(0)


def _count_trailing_backslashes(chunk: bytes) -> int:
    return len(chunk) - len(chunk.rstrip(b"\\"))


def build_late_body_error() -> ApiError:
    """Say that a body did not arrive in time; the connection is of no more use."""
    return ApiError(
        HTTPStatus.REQUEST_TIMEOUT,
        code="body_too_slow",
        detail=f"the body did not arrive within {BODY_S:g} s",
        hint="send the body at once, and large values by way of the payload store",
        headers={"Connection": "close"},
    )


def build_too_many_values_error() -> ApiError:
    """Say that a body holds more values than one request may bring."""
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="payload_too_large",
        detail=f"the body holds more than {HOLDERS_MAX} lists and mappings",
        hint="store it as a payload, or send it as text, and let a task read it",
    )


def build_too_deep_error() -> ApiError:
    """Say that a body is nested without an end."""
    return ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        code="nested_too_deep",
        detail=f"the body is nested deeper than {DEPTH_MAX} levels",
        hint="flatten it, or send it as text",
    )


async def redact_response(response: Response[Any]) -> Response[Any]:
    """Replace sealed values in an answer; one without any goes out as it is.

    Streams hide them message by message.
    """
    content = response.content
    if content is None or isinstance(response, Stream):
        return response
    # Encoded once: what was looked at is what is sent.
    response.content = encode_redacted(content)
    return response


def encode_redacted(content: Any) -> bytes:
    """Encode what is answered, its sealed values replaced."""
    return redaction.mask_sealed_bytes(_encode_content(content))


def _encode_content(content: Any) -> bytes:
    match content:
        case bytes():
            return content
        case str():
            return content.encode()
        case _:
            return codec.encode_json(content)
