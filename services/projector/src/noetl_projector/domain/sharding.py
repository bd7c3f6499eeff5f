"""Which executions a projector keeps."""

from noetl_contracts import ids, subjects
from noetl_contracts.errors import SubjectError
from noetl_contracts.ids import ExecutionId


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


def misplacement(subject: str, execution_id: ExecutionId, shard_count: int) -> str | None:
    """Say why a message stands under the wrong subject, or None when it stands where it should."""
    try:
        said = subjects.parse_shard(subject).shard
    except SubjectError as failure:
        return str(failure)
    owner = ids.shard_of(execution_id, shard_count)
    if said != owner:
        return f"execution {execution_id} belongs to shard {owner} of {shard_count}, not to {said}"
    return None
