"""Replays of histories that were asked for, kept for a while: a later position goes on from them.

Rows are held as encoded bytes, about 600 a row: as mappings they take several times as much.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from noetl_chassis import redaction
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_planner.moments.kept_folds import KeptFolds
from noetl_replay import history_replay, rows
from noetl_replay.fold import fold_history
from noetl_replay.state import ExecutionState, take_changes

FOLDS_MAX = 4
# Of the rows of all replays that are kept, and of one.
BYTES_MAX = 256 * 1024 * 1024

EncodedRows = dict[str, bytes]
EncodedSurfaces = dict[str, EncodedRows]


class ReplayFold:
    """A history folded up to a version, and the rows of some surfaces as they are there.

    Rows have the columns that checksums cover, and sealed values are hidden. `mark_rows` keeps
    them as they are at one version, while the fold goes on to a later one.
    """

    def __init__(self, initial_state: ExecutionState, surfaces: tuple[str, ...]) -> None:
        self.state = initial_state
        self.surfaces = surfaces
        self.rows_by_surface: EncodedSurfaces = {surface: {} for surface in surfaces}
        self.events = 0
        self.marked_version: int | None = None
        self.marked_rows: EncodedSurfaces = {}
        self._row_bytes = 0

    @property
    def weight(self) -> int:
        """Return the bytes of its rows."""
        return self._row_bytes

    @property
    def row_bytes(self) -> int:
        """Return how long its rows are together, as they stand now."""
        return sum(len(row) for keyed in self.rows_by_surface.values() for row in keyed.values())

    def feed_events(self, page: Iterable[Envelope]) -> None:
        """Fold what follows; raises what the fold raises, and is of no more use then."""
        before = self.state.version
        self.state = fold_history(self.state, page)
        self.events += self.state.version - before
        changed_rows = rows.build_changed_rows(self.state, take_changes(self.state))
        for surface in self.surfaces:
            key = rows.KEY_BY_SURFACE[surface]
            for row in changed_rows[surface]:
                self._put_row(surface, str(row[key]), encode_row(surface, row))

    def _put_row(self, surface: str, key: str, data: bytes) -> None:
        encoded_rows = self.rows_by_surface[surface]
        earlier = encoded_rows.get(key, b"")
        # A row that is marked stays beside the one that replaces it.
        is_marked = self.marked_rows.get(surface, {}).get(key) is earlier
        self._row_bytes += len(data) - (0 if is_marked else len(earlier))
        encoded_rows[key] = data

    def mark_rows(self) -> None:
        """Keep the rows as they are now, in the place of those that were marked before."""
        self.marked_version = self.state.version
        self._row_bytes = self.row_bytes
        self.marked_rows = {surface: dict(keyed) for surface, keyed in self.rows_by_surface.items()}


def encode_row(surface: str, row: Mapping[str, Any]) -> bytes:
    """Encode the columns that checksums cover, in the order that they are summed in."""
    columns = rows.select_checksum_columns(surface, row)
    return redaction.mask_sealed_bytes(codec.encode_canonical(columns))


def build_fold_report(fold: ReplayFold, *, projection: str, has_rows: bool) -> dict[str, Any]:
    """Say what a history comes to, as `history_replay.build_replay_report` does.

    Rows are as they are encoded; without them there are their counts and checksums.
    """
    state_bytes = codec.encode_json(history_replay.show_state(fold.state))
    state = codec.decode_json(redaction.mask_sealed_bytes(state_bytes))
    surfaces = {
        surface: {key: msgspec.Raw(row) for key, row in keyed.items()} if has_rows else {}
        for surface, keyed in fold.rows_by_surface.items()
    }
    return {
        **history_replay.describe_state(fold.state),
        "status": str(fold.state.status),
        "projection": projection,
        "state": state,
        "state_checksum": codec.compute_checksum(state),
        "surfaces": surfaces,
        "row_counts": {surface: len(keyed) for surface, keyed in fold.rows_by_surface.items()},
        "projection_checksums": {
            surface: compute_rows_checksum(keyed) for surface, keyed in fold.rows_by_surface.items()
        },
    }


def compute_rows_checksum(encoded_rows: Mapping[str, bytes]) -> str:
    """Fingerprint keyed rows: the digest of their canonical bytes, fed row by row."""
    digest = codec.start_digest()
    digest.update(b"{")
    for place, key in enumerate(sorted(encoded_rows)):
        digest.update(b"," if place else b"")
        digest.update(codec.encode_canonical(key) + b":" + encoded_rows[key])
    digest.update(b"}")
    return digest.hexdigest()


class ReplayFolds(KeptFolds[ReplayFold]):
    """The replays that were used last."""

    def __init__(self) -> None:
        super().__init__(folds_max=FOLDS_MAX, weight_max=BYTES_MAX)

    def take_fold(
        self,
        execution_id: ExecutionId,
        surfaces: tuple[str, ...],
        *,
        until: int,
        mark: int | None = None,
    ) -> ReplayFold | None:
        """Take out the replay that comes closest to a version, and has the mark or can set it."""

        def is_fit(fold: ReplayFold) -> bool:
            version = fold.state.version
            is_marked = mark is None or fold.marked_version == mark or version <= mark
            is_ours = fold.state.execution_id == execution_id and fold.surfaces == surfaces
            return is_ours and is_marked and version <= until

        return self.take_latest(is_fit)
