"""What a projector commits about a shard each second: how far it is projected beyond doubt."""

from datetime import datetime

from msgspec import Struct

from noetl_contracts.ids import ExecutionId


class CheckpointCommitted(
    Struct, frozen=True, kw_only=True, tag="checkpoint.committed", tag_field="event_type"
):
    """An event of a shard's own stream, in no execution's history.

    Everything that was appended to the shard's executions before `through_at`, a time of the
    ledger's clock, is projected; but for the executions that are `set_aside`.
    """

    shard: int
    shard_count: int
    epoch: int
    last_event_id: int
    through_at: datetime
    committed_at: datetime
    set_aside: list[ExecutionId] = []
