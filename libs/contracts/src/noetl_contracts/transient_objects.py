"""Objects in the payload store that nobody needs once the executions are over that wrote them."""

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId

# The first part of their names.
WAVES = "waves"


def build_wave_name(execution_id: ExecutionId, token: str) -> str:
    """Name a wave of frames, below which lies what its executors say."""
    return f"{WAVES}/{execution_id}/{token}"


SCRIPTS = "scripts"


def build_pin_name(execution_id: ExecutionId, *, uri: str, auth: str) -> str:
    """Name the object that holds what an execution has read first from an address."""
    digest = codec.digest_hex(codec.encode_canonical([uri, auth])).removeprefix("sha256:")
    return f"{SCRIPTS}/{execution_id}/{digest}"
