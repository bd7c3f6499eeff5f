"""Which executions a projector keeps."""

from enum import StrEnum
from typing import NamedTuple

from noetl_contracts import ids, subjects
from noetl_contracts.errors import SubjectError
from noetl_contracts.ids import ExecutionId


class Kind(StrEnum):
    """How a message can stand in the wrong place."""

    MISPLACED = "misplaced"
    UNOWNED = "unowned"
    UNSHARDABLE = "unshardable"


def owned_shards(*, index: int, count: int, shard_count: int) -> tuple[int, ...]:
    """List the shards of projector `index` of `count`: every count-th, beginning at its index."""
    return tuple(range(index, shard_count, count))


def ledger_shards(*, index: int, count: int, shard_count: int) -> list[tuple[int, int]]:
    """Describe the same executions by as few (shard, of how many) as possible.

    Shards are remainders: where `count` divides `shard_count`, one remainder by `count` says it.
    """
    if shard_count % count == 0:
        return [(index, count)]
    owned = owned_shards(index=index, count=count, shard_count=shard_count)
    return [(shard, shard_count) for shard in owned]


class Stray(NamedTuple):
    """A message that does not stand where its execution belongs, and why."""

    kind: Kind
    reason: str


def stray(
    subject: str, execution_id: ExecutionId, *, index: int, count: int, shard_count: int
) -> Stray | None:
    """Say why a message is not this projector's own, or None when it is."""
    try:
        said = subjects.parse_shard(subject).shard
    except SubjectError as failure:
        return Stray(Kind.UNSHARDABLE, str(failure))
    owner = ids.shard_of(execution_id, shard_count)
    if said != owner:
        return Stray(
            Kind.MISPLACED,
            f"execution {execution_id} belongs to shard {owner} of {shard_count}, not to {said}",
        )
    if owner % count != index:
        return Stray(
            Kind.UNOWNED,
            f"shard {owner} is kept by projector {owner % count} of {count}, not by {index}",
        )
    return None
