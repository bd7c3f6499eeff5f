"""What a projector has met so far, each kind counted apart."""

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.ids import EventId


class LastBatch(Struct, frozen=True, kw_only=True):
    """The shape of the latest transaction."""

    messages: int
    executions: int
    events: int
    stale: int


class Tally(Struct, kw_only=True):
    """Counts since the process began; only its owner adds to them.

    `duplicates` had been projected before, `stale` writes found the position moved by another
    projector, `gaps` were closed from the ledger with `gap_events`, `misplaced` messages stood
    under another shard's subject, `unowned` ones belong to another projector's shards, and the
    subjects of `unshardable` ones name no shard.
    """

    batches: int = 0
    events: int = 0
    duplicates: int = 0
    stale: int = 0
    gaps: int = 0
    gap_events: int = 0
    misplaced: int = 0
    unowned: int = 0
    unshardable: int = 0
    undecodable: int = 0
    poisoned: int = 0
    snapshots: int = 0
    last_batch: LastBatch | None = None
    last_event_id: EventId | None = None
    last_event_at: datetime | None = None
    moved_at: datetime | None = None

    def show(self) -> dict[str, Any]:
        """Return everything as plain values."""
        shown: dict[str, Any] = msgspec.to_builtins(self)
        return shown
