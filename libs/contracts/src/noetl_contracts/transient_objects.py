"""Names of objects in the payload store that are garbage once their execution has ended.

The Spark lane writes waves and rows that were rejected, the script loader pins scripts; the payload
collection removes them.
"""

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId

# The folder of each kind is the first part of its names.
WAVES = "waves"


def build_wave_name(execution_id: ExecutionId, token: str) -> str:
    """Build the name of a wave (frames of one Spark job), under which executors put manifests."""
    return f"{WAVES}/{execution_id}/{token}"


SCRIPTS = "scripts"


def build_pin_name(execution_id: ExecutionId, *, uri: str, auth: str) -> str:
    """Build the name of a pinned script: the text that an execution read first from `uri`."""
    digest = codec.digest_hex(codec.encode_canonical([uri, auth])).removeprefix("sha256:")
    return f"{SCRIPTS}/{execution_id}/{digest}"


GRANTS = "grants"


def build_grant_name(execution_id: ExecutionId, token: str) -> str:
    """Build the name of the sealed keys that executors of a long job read when theirs end."""
    return f"{GRANTS}/{execution_id}/{token}"


# Checkpoints of streams: they outlive executions, and of their versions the last one stays.
STREAMS = "streams"


def build_checkpoint_prefix(name: str) -> str:
    """Build what the names of a checkpoint's objects begin with."""
    return f"{STREAMS}/{name}/"


def build_head_name(prefix: str) -> str:
    """Build the name of the object without which there is no checkpoint of a `prefix`."""
    return f"{prefix}head"


# So many steps of a stream's source after which one lists all files that were taken up before.
STREAM_STEPS_WHOLE_EVERY = 64
REJECTS = "rejects"


def build_rejects_name(execution_id: ExecutionId, *, token: str, dataset: str) -> str:
    """Build the name under which executors of one job tell which rows of an input do not fit."""
    digest = codec.digest_hex(dataset.encode()).removeprefix("sha256:")
    return f"{REJECTS}/{execution_id}/{token}/{digest[:16]}"
