"""Identities: decimal strings of at most 63 bits, safe in JSON, SQL and subjects."""

from functools import lru_cache
from typing import Annotated, NewType

from msgspec import Meta

from noetl_contracts import codec

ExecutionId = NewType("ExecutionId", str)
EventId = NewType("EventId", str)
RunId = NewType("RunId", str)
CommandId = NewType("CommandId", str)
StageId = NewType("StageId", str)
FrameId = NewType("FrameId", str)
WorkerId = NewType("WorkerId", str)
CatalogId = NewType("CatalogId", str)

TenantId = NewType("TenantId", str)
OrganizationId = NewType("OrganizationId", str)

SHARD_COUNT_DEFAULT = 16
SHARD_COUNT_MAX = 256
ShardCount = Annotated[int, Meta(ge=1, le=SHARD_COUNT_MAX)]
_MAX = 2**63 - 1
_DIGITS_MAX = 19


def is_identity(text: str) -> bool:
    """Tell whether a text is an identity as all of them are written."""
    return (
        len(text) <= _DIGITS_MAX
        and text.isascii()
        and text.isdigit()
        and text[0] != "0"
        and int(text) <= _MAX
    )


def _derive_identity(*parts: str | int) -> str:
    """Derive a stable 63-bit identity from what makes the thing unique."""
    seed = "/".join(str(part) for part in parts).encode()
    return str(int.from_bytes(codec.digest_bytes(seed)[:8], "big") >> 1 or 1)


def derive_run_id(execution_id: ExecutionId, activation: int) -> RunId:
    """Name the nth activation of any step of an execution; also the loop's epoch."""
    return RunId(_derive_identity(execution_id, "run", activation))


def derive_command_id(run: RunId, unit: str) -> CommandId:
    """Name a run's unit of work: `step`, `item-<index>` or `slot-<slot>-<round>`."""
    return CommandId(_derive_identity(run, "command", unit))


def derive_approval_id(command: CommandId, key: str) -> str:
    """Name an approval: the same however often the task is run again."""
    return _derive_identity(command, "approval", key)


def derive_stage_id(run: RunId) -> StageId:
    """Name the stage that one loop epoch opens."""
    return StageId(_derive_identity(run, "stage"))


def derive_frame_id(stage: StageId, *, slot: int, frame_index: int) -> FrameId:
    """Name a frame; equal in every attempt, so that a lost claim finds its own rows again."""
    return FrameId(_derive_identity(stage, "frame", slot, frame_index))


def derive_inner_frame_id(frame: FrameId, *, unit: int, frame_index: int) -> FrameId:
    """Name a frame that a worker cuts out of another one; equal in every attempt."""
    return FrameId(_derive_identity(frame, "inner", unit, frame_index))


# Asked several times for each message of an execution.
@lru_cache(maxsize=4096)
def find_shard(execution_id: ExecutionId, shard_count: int) -> int:
    """Place an execution on one of `shard_count` shards, evenly and for good."""
    seed = codec.digest_bytes(f"shard/{execution_id}".encode())
    return int.from_bytes(seed[:8], "big") % shard_count
