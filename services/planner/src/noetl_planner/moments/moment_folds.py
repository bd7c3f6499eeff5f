"""Folds of histories that pages look at, kept for a while: a later moment goes on from them.

A moment of a long history is folded in slices, one a request. Between two requests the fold stays
here, in the memory of this process alone: another planner, or this one after a minute at rest,
begins again. Of a frame no more is kept than a page shows of it, about 300 bytes.
"""

from collections.abc import Iterable
from typing import Any

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import FrameBins
from noetl_planner.moments.kept_folds import KeptFolds
from noetl_replay import rows
from noetl_replay.fold import fold_history
from noetl_replay.state import ExecutionState, take_changes
from noetl_storage.ledger import frame_bins
from noetl_storage.ledger.frame_bins import FrameSpan

FOLDS_MAX = 8
# Of all folds that are kept; one alone may have more.
FRAMES_MAX = 300_000
Row = dict[str, Any]


class MomentFold:
    """A history folded up to a version, and what a page shows of it there."""

    def __init__(self, initial_state: ExecutionState) -> None:
        self.state = initial_state
        self._rows_by_surface: dict[str, dict[str, Row]] = {"stage": {}, "loop": {}}
        self._spans: dict[int, FrameSpan] = {}

    @property
    def weight(self) -> int:
        """Return how many frames it holds."""
        return len(self._spans)

    def feed_events(self, page: Iterable[Envelope]) -> None:
        """Fold what follows; raises what the fold raises, and is of no more use then."""
        self.state = fold_history(self.state, page)
        changes = take_changes(self.state)
        stages, loops = self._rows_by_surface["stage"], self._rows_by_surface["loop"]
        stages |= {
            str(key): rows.build_stage_row(self.state, stage)
            for key, stage in changes.stages.items()
        }
        loops |= {
            str(key): rows.build_loop_row(self.state, loop) for key, loop in changes.loops.items()
        }
        for frame in changes.frames.values():
            span = frame_bins.build_span(
                stage_id=frame.stage_id,
                frame_id=frame.frame_id,
                status=frame.status,
                row_count=frame.row_count,
                started_at=frame.created_at,
                ended_at=frame.completed_at,
            )
            self._spans[span.frame_id] = span

    def show_execution(self) -> Row:
        """Show the execution's row."""
        return rows.build_execution_row(self.state)

    def list_rows(self, surface: str) -> list[Row]:
        """List the rows of stages or loops, as they were touched first."""
        return list(self._rows_by_surface[surface].values())

    def bin_frames(self, *, bins_max: int) -> FrameBins:
        """Share out the frames over bins."""
        return frame_bins.bin_spans(self._spans.values(), bins_max=bins_max)


class MomentFolds(KeptFolds[MomentFold]):
    """The folds that were used last."""

    def __init__(self) -> None:
        super().__init__(folds_max=FOLDS_MAX, weight_max=FRAMES_MAX)

    def take_fold(self, execution_id: ExecutionId, version: int) -> MomentFold | None:
        """Take out the fold that comes closest to a version, and not behind it."""
        return self.take_latest(
            lambda fold: fold.state.execution_id == execution_id and fold.state.version <= version
        )
