"""From states to the rows of one transaction."""

from typing import Any

from noetl_replay import rows
from noetl_replay.state import ExecutionState, take_changes

SNAPSHOT_SHARE = 16
RowsBySurface = dict[str, list[dict[str, Any]]]


def build_empty_rows() -> RowsBySurface:
    """Return every surface, empty."""
    return {surface: [] for surface in rows.SURFACES}


def add_changes(into: RowsBySurface, results: list[dict[str, Any]], state: ExecutionState) -> None:
    """Add what a state has touched since the last time, and forget that it did."""
    changes = take_changes(state)
    results.extend(rows.build_result_rows(state, changes))
    for surface, changed_rows in rows.build_changed_rows(state, changes).items():
        into[surface].extend(changed_rows)


def is_snapshot_due(
    state: ExecutionState, *, remembered: int, every: int, at_end_after: int
) -> bool:
    """Remember a state every so many versions, and at the end of all but short executions.

    A snapshot holds the whole state. They grow rarer as it grows, so that an event costs the same
    at any length of a history.
    """
    fresh = state.version - remembered
    return fresh >= max(every, remembered // SNAPSHOT_SHARE) or (
        state.is_terminal() and fresh >= at_end_after
    )
