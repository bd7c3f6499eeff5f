"""An answer of Docker or Kubernetes that it did not do what was asked."""

import aiohttp
import msgspec

from noetl_contracts import codec

ERROR_STATUS = 400
NOT_FOUND, CONFLICT = 404, 409
_MESSAGE_BYTES_MAX = 64 * 1024
_MESSAGE_CHARACTERS_MAX = 500


class ApiRefusal(Exception):  # noqa: N818 - it says what happened
    """What was asked was not done: the status of the answer, and what it says."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


async def read_message(response: aiohttp.ClientResponse) -> str:
    """Return what a refusal says: its `message`, else its text, else its status."""
    data = await response.content.read(_MESSAGE_BYTES_MAX)
    text = data.decode(errors="replace").strip()
    try:
        decoded = codec.decode_json(data)
    except msgspec.DecodeError:
        decoded = None
    if isinstance(decoded, dict) and isinstance(decoded.get("message"), str):
        text = decoded["message"]
    return text[:_MESSAGE_CHARACTERS_MAX] or f"status {response.status}"
