"""How far a task has read: the greatest cursor of its rows."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from noetl_contracts.commands import state_values
from noetl_contracts.commands.state_values import StateValue

# A part of a transfer's result, which travels with its effect.
RESULT_KEY = "increment"


class CursorReading(Struct, frozen=True, kw_only=True):
    """The greatest cursor that was read, and how many rows were; None where no row had one."""

    value: StateValue | None = None
    rows: int = 0


def join_readings(cursor_reading: CursorReading, other: CursorReading) -> CursorReading:
    """Return what two readings come to together."""
    values = [reading.value for reading in (cursor_reading, other) if reading.value is not None]
    return CursorReading(value=find_latest(values), rows=cursor_reading.rows + other.rows)


def find_latest(values: Iterable[StateValue]) -> StateValue | None:
    """Return the greatest of values of one type, None where there is none."""
    return max(values, key=state_values.build_order_key, default=None)


def show_reading(reading: CursorReading) -> dict[str, Any]:
    """Show a reading in a task's result."""
    value = None if reading.value is None else reading.value.value
    return {"cursor": value, "rows": reading.rows}
