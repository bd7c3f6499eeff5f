"""From states to the rows of one transaction."""

from typing import Any

from noetl_replay import rows
from noetl_replay.state import ExecutionState, take_changes

RowsBySurface = dict[str, list[dict[str, Any]]]


def no_rows() -> RowsBySurface:
    """Return every surface, empty."""
    return {surface: [] for surface in rows.SURFACES}


def add_changes(into: RowsBySurface, results: list[dict[str, Any]], state: ExecutionState) -> None:
    """Add what a state has touched since the last time, and forget that it did."""
    changes = take_changes(state)
    results.extend(rows.result_rows(state, changes))
    for surface, found in rows.changed_rows(state, changes).items():
        into[surface].extend(found)


def is_snapshot_due(
    state: ExecutionState, *, remembered: int, every: int, at_end_after: int
) -> bool:
    """Remember a state every so many versions, and at the end of all but short executions."""
    fresh = state.version - remembered
    return fresh >= every or (state.is_terminal() and fresh >= at_end_after)
