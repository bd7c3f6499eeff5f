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
    # Encoded once: what was looked at is what is sent.
    response.content = concealed(content)
    return response


def concealed(content: Any) -> bytes:
    """Encode what is answered, its sealed values replaced."""
    return redaction.unsealed_bytes(_encoded(content))


def _encoded(content: Any) -> bytes:
    match content:
        case bytes():
            return content
        case str():
            return content.encode()
        case _:
            return codec.encode(content)
