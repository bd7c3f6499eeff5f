"""An execution waits for the payload store: what planners say of those that they hold back."""

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import ExecutionId

STORE_WAIT_BYTES_MAX = 2048
REASON_CHARACTERS_MAX = 300


class StoreWait(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A planner holds an execution back: the store refuses what must be stored before an event.

    Without a `reason` the wait is over.
    """

    execution_id: ExecutionId
    reason: str = ""


def decode_store_wait(data: bytes) -> StoreWait:
    """Decode what a planner said; raises `MalformedMessage`."""
    if len(data) > STORE_WAIT_BYTES_MAX:
        raise MalformedMessage(f"a wait for the store takes more than {STORE_WAIT_BYTES_MAX} bytes")
    try:
        return codec.decode_as(data, StoreWait)
    except msgspec.DecodeError as failure:
        raise MalformedMessage(
            f"a wait for the store does not fit its schema: {failure}"
        ) from failure
