"""How far a step with `incremental` has read: the greatest cursor of the rows of a task."""

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from noetl_contracts.commands import state_values
from noetl_contracts.commands.state_values import StateType, StateValueError
from noetl_storage.process.lazy_import import LazyModule
from noetl_worker.domain.cursor_values import CursorReading, find_latest, join_readings
from noetl_worker.domain.failures import ToolFailure, build_error

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")

_NANOSECONDS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_DAY_CHARACTERS = len("2024-01-31")
_ANY_DIGIT = str.maketrans(dict.fromkeys("0123456789", "0"))
_NAMES_MAX = 20


class CursorScan:
    """Looks through the rows of one attempt; every method raises `ToolFailure`."""

    def __init__(self, column: str, type_: StateType) -> None:
        self.column = column
        self.type = type_
        self._reading = CursorReading()

    @property
    def reading(self) -> CursorReading:
        """Return what was found so far."""
        return self._reading

    def scan_rows(self, rows: Sequence[Any]) -> None:
        """Look through rows that are mappings; a row without the column has no cursor."""
        if not rows:
            return
        values = [row.get(self.column) for row in rows if isinstance(row, dict)]
        if len(values) < len(rows):
            text = "the rows of an increment are mappings from column to value"
            raise ToolFailure(build_error("validation", text))
        if all(value is None for value in values):
            # One that is null everywhere is there; one that no row names is not.
            names = dict.fromkeys(name for row in rows for name in row)
            if self.column not in names:
                raise _build_missing(self.column, names)
        self._add_values((value for value in values if value is not None), len(rows))

    def scan_batch(self, batch: "pa.RecordBatch | pa.Table") -> None:
        """Look through the one column of a batch or a table."""
        if not batch.num_rows:
            return
        if self.column not in batch.schema.names:
            raise _build_missing(self.column, batch.schema.names)
        self._add_values(_list_maxima(batch.column(self.column)), batch.num_rows)

    def note_reading(self, value: Any, rows: int) -> None:
        """Take over what somebody else has found: the greatest value of so many rows."""
        self._add_values([] if value is None else [value], rows)

    def _add_values(self, values: Iterable[Any], rows: int) -> None:
        try:
            scanned = [
                state_values.parse_state_value(value, self.type)
                for value in _select_maxima(values, self.type)
            ]
        except StateValueError as problem:
            text = f"cursor {self.column!r}: {problem}, or declare another type under incremental"
            raise ToolFailure(build_error("validation", text)) from problem
        reading = CursorReading(value=find_latest(scanned), rows=rows)
        self._reading = join_readings(self._reading, reading)


def _select_maxima(values: Iterable[Any], type_: StateType) -> Iterable[Any]:
    """Return values among which the greatest is, so that not each of them has to be parsed."""
    if type_ is StateType.TEXT:
        texts = list(values)
        are_texts = bool(texts) and all(type(text) is str for text in texts)
        return [max(texts)] if are_texts else texts
    greatest: dict[Any, Any] = {}
    for value in values:
        if type(value) not in (int, str):
            # It is refused, and the others are of no interest.
            return [value]
        form = _name_form(value, type_)
        if form not in greatest or greatest[form] < value:
            greatest[form] = value
    return greatest.values()


def _name_form(value: int | str, type_: StateType) -> Any:
    """Return what values share that compare with each other as they are: of moments their form."""
    if isinstance(value, int):
        return int
    if type_ is StateType.INTEGER:
        return value
    offset_at = max(value.find(sign, _DAY_CHARACTERS + 1) for sign in "+-Zz")
    moment, offset = (value, "") if offset_at < 0 else (value[:offset_at], value[offset_at:])
    return moment.translate(_ANY_DIGIT), offset


def _list_maxima(column: Any) -> list[Any]:
    """Return values of an Arrow column among which the greatest is."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return [text for text in pc.unique(column).to_pylist() if text is not None]
    if column.null_count == len(column):
        return []
    if pa.types.is_timestamp(kind):
        count = pc.max(column.cast(pa.int64())).as_py()
        return [_spell_moment(count * _NANOSECONDS[kind.unit], has_offset=kind.tz is not None)]
    if pa.types.is_integer(kind) or pa.types.is_date(kind) or pa.types.is_decimal(kind):
        return [_write_maximum(pc.max(column).as_py())]
    # Anything else is refused by its value.
    return [column.drop_null()[0].as_py()]


def _spell_moment(nanoseconds: int, *, has_offset: bool) -> str:
    return str(state_values.build_timestamp(nanoseconds, has_offset=has_offset).value)


def _write_maximum(value: Any) -> Any:
    """Return the greatest value of a column as an increment keeps it: a number, or text."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else str(value)
    return value if isinstance(value, int) else value.isoformat()


def _build_missing(column: str, names: Iterable[str]) -> ToolFailure:
    known_names = sorted(names)
    names_text = ", ".join(known_names[:_NAMES_MAX]) + (
        ", ..." if len(known_names) > _NAMES_MAX else ""
    )
    return ToolFailure(
        build_error(
            "validation",
            f"cursor {column!r} is no column of the rows, which have {names_text or 'none'}: "
            "select it, or name another column under incremental.cursor",
        )
    )
