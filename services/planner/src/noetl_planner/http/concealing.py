"""Answers show no sealed value: it opens in workers alone and means nothing to people."""

from typing import Any

from litestar import Response
from litestar.response import Stream

from noetl_chassis import redaction
from noetl_contracts import codec


async def conceal(response: Response[Any]) -> Response[Any]:
    """Replace sealed values in an answer; one without any goes out as it is.

    Streams hide them message by message.
    """
    content = response.content
    if content is None or isinstance(response, Stream):
        return response
    data = content if isinstance(content, bytes) else codec.encode(content)
    shown = redaction.unsealed_bytes(data)
    if shown is not data:
        response.content = shown
    return response
