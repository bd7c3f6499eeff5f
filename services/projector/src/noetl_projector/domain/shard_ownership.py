"""Which executions a projector keeps."""

from enum import StrEnum
from typing import NamedTuple

from noetl_contracts import ids, subjects
from noetl_contracts.errors import SubjectError
from noetl_contracts.ids import ExecutionId


class MisplacementKind(StrEnum):
    """How a message can stand in the wrong place."""

    MISPLACED = "misplaced"
    UNOWNED = "unowned"
    UNSHARDABLE = "unshardable"


def list_owned_shards(*, index: int, count: int, shard_count: int) -> tuple[int, ...]:
    """List the shards of projector `index` of `count`: every count-th, beginning at its index."""
    return tuple(range(index, shard_count, count))


def list_ledger_shards(*, index: int, count: int, shard_count: int) -> list[tuple[int, int]]:
    """Describe the same executions by as few (shard, of how many) as possible.

    Shards are remainders: where `count` divides `shard_count`, one remainder by `count` says it.
    """
    if shard_count % count == 0:
        return [(index, count)]
    owned = list_owned_shards(index=index, count=count, shard_count=shard_count)
    return [(shard, shard_count) for shard in owned]


class MisplacedMessage(NamedTuple):
    """A message that does not stand where its execution belongs, and why."""

    kind: MisplacementKind
    reason: str


def find_misplaced_message(
    subject: str, execution_id: ExecutionId, *, index: int, count: int, shard_count: int
) -> MisplacedMessage | None:
    """Say why a message is not this projector's own, or None when it is."""
    try:
        stated = subjects.parse_shard_subject(subject).shard
    except SubjectError as failure:
        return MisplacedMessage(MisplacementKind.UNSHARDABLE, str(failure))
    owner = ids.find_shard(execution_id, shard_count)
    if stated != owner:
        return MisplacedMessage(
            MisplacementKind.MISPLACED,
            f"execution {execution_id} belongs to shard {owner} of {shard_count}, not to {stated}",
        )
    if owner % count != index:
        return MisplacedMessage(
            MisplacementKind.UNOWNED,
            f"shard {owner} is kept by projector {owner % count} of {count}, not by {index}",
        )
    return None
