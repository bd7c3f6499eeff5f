"""What a worker answers when it is asked which commands it holds."""

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import WorkerId

HELD_BYTES_MAX = 256 * 1024


class HeldCommands(Struct, frozen=True, kw_only=True):
    """The `sequences`, in the stream of commands, of what the lanes of a worker hold.

    `call` repeats the question that it answers.
    """

    call: str
    worker_id: WorkerId
    pool: str
    lanes: tuple[str, ...]
    sequences: tuple[int, ...]


def decode_held_commands(data: bytes) -> HeldCommands:
    """Decode what a worker answered; raises `MalformedMessage`."""
    if len(data) > HELD_BYTES_MAX:
        raise MalformedMessage(f"a worker's answer takes more than {HELD_BYTES_MAX} bytes")
    try:
        return codec.decode_as(data, HeldCommands)
    except msgspec.DecodeError as failure:
        raise MalformedMessage(f"a worker's answer does not fit its schema: {failure}") from failure
