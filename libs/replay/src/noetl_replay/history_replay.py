"""A replay in progress: the state, the projected rows that follow from it, and their checksums."""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.ledger import upcasters
from noetl_contracts.ledger.envelope import Envelope
from noetl_replay import rows
from noetl_replay.comparison import Surfaces
from noetl_replay.fold import FOLD_VERSION, fold_history
from noetl_replay.state import Changes, ExecutionState, take_changes

ALGORITHM = "sha256"
ALL = "all"

Conceal = Callable[[bytes], bytes]


class HistoryReplay:
    """Folds a history page by page; begun from a snapshot it knows no rows of what had ended."""

    def __init__(self, initial_state: ExecutionState) -> None:
        self.state = initial_state
        self.surfaces: Surfaces = {surface: {} for surface in rows.SURFACES}
        self.results: dict[str, rows.Row] = {}
        self.events = 0

    def feed_events(self, page: Iterable[Envelope]) -> None:
        """Fold what follows; raises `MalformedMessage` when something does not."""
        before = self.state.version
        self.state = fold_history(self.state, page)
        self.events += self.state.version - before
        # What was touched is shown once, as it is after the page: earlier rows would be replaced.
        changes = take_changes(self.state)
        self.results.update(
            {row["ref_id"]: row for row in rows.build_result_rows(self.state, changes)}
        )
        for surface, changed_rows in rows.build_changed_rows(self.state, changes).items():
            key = rows.KEY_BY_SURFACE[surface]
            self.surfaces[surface].update({row[key]: row for row in changed_rows})


def show_state(state: ExecutionState) -> dict[str, Any]:
    """Show a state as plain values: without what was touched last and what no checksum covers."""
    plain: dict[str, Any] = codec.to_builtins(structs.replace(state, changes=Changes()))
    del plain["changes"]
    plain["stages"] = {
        key: rows.select_checksum_columns("stage", item) for key, item in plain["stages"].items()
    }
    return plain


def build_replay_report(
    replay: HistoryReplay, *, projection: str = ALL, conceal: Conceal | None = None
) -> dict[str, Any]:
    """Say what a history comes to: the state, the rows chosen, and a checksum of each.

    What `conceal` hides is hidden before anything is summed, so that the checksums are those of
    what is shown.
    """
    surfaces = replay.surfaces if projection == ALL else {projection: replay.surfaces[projection]}
    chosen_rows = rows.select_checksum_surfaces(surfaces)
    data = codec.encode_json([show_state(replay.state), chosen_rows])
    state, plain = codec.decode_json(data if conceal is None else conceal(data))
    return {
        **describe_state(replay.state),
        "status": str(replay.state.status),
        "projection": projection,
        "state": state,
        "state_checksum": codec.compute_checksum(state),
        "surfaces": plain,
        "projection_checksums": {
            surface: codec.compute_checksum(row_by_key) for surface, row_by_key in plain.items()
        },
    }


def describe_state(state: ExecutionState) -> dict[str, Any]:
    """Say whose state this is, at which position, and how it was made."""
    return {
        "execution_id": state.execution_id,
        "tenant_id": state.tenant_id,
        "organization_id": state.organization_id,
        "version": state.version,
        "event_id": state.last_event_id,
        "envelope_checksum": state.checksum,
        "checksum_algorithm": ALGORITHM,
        "fold_version": FOLD_VERSION,
        "upcaster_digest": upcasters.digest_registry(),
    }
