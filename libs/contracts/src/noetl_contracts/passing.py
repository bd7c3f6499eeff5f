"""Objects in the payload store that nobody needs once the executions are over that wrote them."""

from noetl_contracts.ids import ExecutionId

# The first part of their names.
WAVES = "waves"


def wave(execution_id: ExecutionId, token: str) -> str:
    """Name a wave of frames, below which lies what its executors say."""
    return f"{WAVES}/{execution_id}/{token}"
