"""The stores and ports of a projector."""

from msgspec import Struct

from noetl_messaging.streams.ports import Consumer, DeadLetters
from noetl_storage.ports.history_ports import PastSnapshots, ProjectionRebuilds
from noetl_storage.ports.ledger_ports import LedgerReader, Projections, ShardCheckpoints, Snapshots


class ProjectorStores(Struct, frozen=True, kw_only=True):
    """All that the projector may touch."""

    consumer: Consumer
    letters: DeadLetters
    ledger: LedgerReader
    projections: Projections
    snapshots: Snapshots
    past: PastSnapshots
    rebuilds: ProjectionRebuilds
    # Without it every search for what was left behind is of all histories.
    checkpoints: ShardCheckpoints | None = None
