"""What a projector is handed."""

from msgspec import Struct

from noetl_messaging.ports import Consumer, DeadLetters
from noetl_storage.audit_ports import Past, Rebuilds
from noetl_storage.epoch_ports import Checkpoints
from noetl_storage.ports import LedgerReader, Projections, Snapshots


class Stores(Struct, frozen=True, kw_only=True):
    """All that the projector may touch."""

    consumer: Consumer
    letters: DeadLetters
    ledger: LedgerReader
    projections: Projections
    snapshots: Snapshots
    past: Past
    rebuilds: Rebuilds
    # Without it every search for what was left behind is of all histories.
    checkpoints: Checkpoints | None = None
