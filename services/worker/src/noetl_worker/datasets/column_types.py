"""Types of a dataset's columns: read from DDL, and guessed from texts without losing any."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import sqlglot
from sqlglot import exp

from noetl_storage.arrow.table_schema import DECIMAL_DIGITS_MAX
from noetl_worker.datasets.problems import DatasetProblem

_TYPES: dict[Any, pa.DataType] = {
    exp.DataType.Type.BOOLEAN: pa.bool_(),
    exp.DataType.Type.TINYINT: pa.int8(),
    exp.DataType.Type.SMALLINT: pa.int16(),
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(),
    exp.DataType.Type.FLOAT: pa.float32(),
    exp.DataType.Type.DOUBLE: pa.float64(),
    exp.DataType.Type.DATE: pa.date32(),
    exp.DataType.Type.TIMESTAMP: pa.timestamp("us", "UTC"),
    exp.DataType.Type.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    exp.DataType.Type.TIMESTAMPLTZ: pa.timestamp("us", "UTC"),
    exp.DataType.Type.TIMESTAMPNTZ: pa.timestamp("us"),
    exp.DataType.Type.DATETIME: pa.timestamp("us"),
    exp.DataType.Type.BINARY: pa.binary(),
    exp.DataType.Type.VARBINARY: pa.binary(),
    **dict.fromkeys(
        (
            exp.DataType.Type.TEXT,
            exp.DataType.Type.VARCHAR,
            exp.DataType.Type.CHAR,
            exp.DataType.Type.NVARCHAR,
        ),
        pa.string(),
    ),
}
_NAMES = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
    pa.binary(): "BINARY",
    pa.string(): "STRING",
}
_DRIFT_SHOWN = 10
_DECIMAL_DIGITS = 10
# Texts that come back the same from a column of the type.
_INTEGER = r"^(0|-?[1-9][0-9]*)$"
_DECIMAL = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$"
_DATE = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"
_MOMENT = _DATE.removesuffix("$") + r"[T ]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?$"
_BOOLEAN = r"^(true|false)$"
_LONG_DIGITS = 18


def parse_ddl(text: str) -> dict[str, pa.DataType]:
    """Read the columns of `id BIGINT, day DATE`; raises `DatasetProblem`."""
    try:
        tree = sqlglot.parse_one(f"CREATE TABLE t ({text})", read="spark")
    except sqlglot.errors.SqlglotError as problem:
        reason = str(problem).splitlines()[0][:200]
        raise DatasetProblem("validation", f"schema {text!r:.120} is no DDL: {reason}") from problem
    # Fields of a struct are column definitions, too.
    columns = [part for part in tree.this.expressions if isinstance(part, exp.ColumnDef)]
    bound = [column.name for column in columns if column.args.get("constraints")]
    if bound:
        text_ = (
            f"schema: column '{bound[0]}' has a constraint: a schema has types alone, and "
            f"expect: {{not_null: [{bound[0]}]}} checks rows"
        )
        raise DatasetProblem("validation", text_)
    types = {column.name: _convert_type(column.name, column.kind) for column in columns}
    if not types or len(types) < len(tree.this.expressions) or tree.expression is not None:
        text_ = f"schema {text!r:.120} names no columns, or one twice: write id BIGINT, day DATE"
        raise DatasetProblem("validation", text_)
    return types


def _convert_type(column: str, kind: exp.Expression | None) -> pa.DataType:
    if not isinstance(kind, exp.DataType):
        raise DatasetProblem("validation", f"column '{column}' of the schema has no type")
    if kind.this == exp.DataType.Type.DECIMAL:
        sizes = [int(expression.this.this) for expression in kind.expressions] or [
            _DECIMAL_DIGITS,
            0,
        ]
        digits, scale = sizes[0], sizes[1] if len(sizes) > 1 else 0
        if not 0 <= scale <= digits <= DECIMAL_DIGITS_MAX or digits < 1:
            text = (
                f"column '{column}' of the schema: a decimal has 1 to {DECIMAL_DIGITS_MAX} digits"
            )
            raise DatasetProblem("validation", text)
        return pa.decimal128(digits, scale)
    if kind.this == exp.DataType.Type.ARRAY and kind.expressions:
        return pa.list_(_convert_type(column, kind.expressions[0]))
    if kind.this == exp.DataType.Type.MAP and len(kind.expressions) == 2:  # noqa: PLR2004 - key and value
        key, item = (_convert_type(column, expression) for expression in kind.expressions)
        return pa.map_(key, item)
    if kind.this == exp.DataType.Type.STRUCT:
        return pa.struct(
            [
                pa.field(
                    expression.name,
                    _convert_type(f"{column}.{expression.name}", expression.args.get("kind")),
                )
                for expression in kind.expressions
            ]
        )
    data_type = _TYPES.get(kind.this)
    if data_type is None:
        type_text = kind.sql("spark")
        raise DatasetProblem("validation", f"column '{column}' has the unknown type {type_text}")
    return data_type


def describe_drift(types: str, schema: pa.Schema, *, may_grow: bool) -> str:
    """Say which columns of a schema are not those of the DDL `types`, in any order.

    It is empty where all are; `may_grow` allows more of them. Raises `DatasetProblem`.
    """
    try:
        expected = parse_ddl(types)
    except DatasetProblem as problem:
        raise DatasetProblem(problem.kind, f"expect.schema: {problem.message}") from problem
    missing = [f"'{name}' is missing" for name in expected if name not in schema.names]
    other = [
        f"'{field.name}' is {name_type(field.type)}, not {name_type(expected[field.name])}"
        for field in schema
        if field.name in expected and not _is_same_type(field.type, expected[field.name])
    ]
    new = [
        f"'{field.name}' is new, and {name_type(field.type)}"
        for field in schema
        if field.name not in expected and not may_grow
    ]
    found = [*missing, *other, *new]
    if not found:
        return ""
    more = f", and {len(found) - _DRIFT_SHOWN} more" if len(found) > _DRIFT_SHOWN else ""
    return f"column {', column '.join(found[:_DRIFT_SHOWN])}{more}"


def list_text_columns(schema: pa.Schema) -> list[str]:
    """Return the names of the columns of text."""
    return [
        field.name
        for field in schema
        if pa.types.is_string(field.type)
        or pa.types.is_large_string(field.type)
        or pa.types.is_string_view(field.type)
    ]


def name_type(kind: pa.DataType) -> str:
    """Name a type as DDL does."""
    kind = _simplify_type(kind)
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{name_type(kind.value_type)}>"
    return _NAMES.get(kind) or str(kind)


def _is_same_type(one: pa.DataType, other: pa.DataType) -> bool:
    return bool(_simplify_type(one) == _simplify_type(other))


def _simplify_type(kind: pa.DataType) -> pa.DataType:
    """Return one type for all that hold the same values; of moments the zone counts, no unit."""
    if pa.types.is_dictionary(kind):
        return _simplify_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pa.types.is_decimal(kind):
        return pa.decimal256(kind.precision, kind.scale)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_simplify_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _simplify_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_simplify_type(kind.key_type), _simplify_type(kind.item_type))
    return kind


class TextShape:
    """Which types the texts of a column fit, so that each comes back as it is written."""

    def __init__(self) -> None:
        self.count = 0
        self.fits: set[str] = {"integer", "decimal", "date", "moment", "boolean"}
        self.whole = self.scale = 0

    def add_texts(self, texts: pa.Array | pa.ChunkedArray) -> None:
        """Look at more of them; null is of every type."""
        texts = texts.drop_null()
        if len(texts) == 0:
            return
        self.count += len(texts)
        for name, pattern in _PATTERNS.items():
            if name in self.fits and not _all_match(texts, pattern):
                self.fits.discard(name)
        for name, kind in _CALENDAR.items():
            if name in self.fits and not _can_cast(texts, kind):
                self.fits.discard(name)
        if "decimal" in self.fits:
            whole_digits = pc.replace_substring_regex(texts, r"^-|\..*$", "")
            self.whole = max(self.whole, _measure_longest(whole_digits))
            self.scale = max(
                self.scale, _measure_longest(pc.replace_substring_regex(texts, r"^[^.]*\.?", ""))
            )

    def choose_type(self) -> pa.DataType:
        """Return the type that loses nothing."""
        if self.count == 0:
            return pa.string()
        if "boolean" in self.fits:
            return pa.bool_()
        if "date" in self.fits:
            return pa.date32()
        if "moment" in self.fits:
            return pa.timestamp("us")
        if "integer" in self.fits and self.whole <= _LONG_DIGITS:
            return pa.int64()
        if "decimal" in self.fits and self.whole + self.scale <= DECIMAL_DIGITS_MAX:
            return pa.decimal128(self.whole + self.scale, self.scale)
        return pa.string()


_PATTERNS = {
    "integer": _INTEGER,
    "decimal": _DECIMAL,
    "date": _DATE,
    "moment": _MOMENT,
    "boolean": _BOOLEAN,
}


def guess_types(shapes: Mapping[str, TextShape]) -> dict[str, pa.DataType]:
    """Return the types of columns by what their texts have shown."""
    return {name: shape.choose_type() for name, shape in shapes.items()}


_CALENDAR = {"date": pa.date32(), "moment": pa.timestamp("us")}


def _can_cast(texts: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> bool:
    """Tell whether all texts are of the calendar: there is no 30 February."""
    try:
        texts.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _all_match(texts: pa.Array | pa.ChunkedArray, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False


def _measure_longest(texts: pa.Array | pa.ChunkedArray) -> int:
    return int(pc.max(pc.utf8_length(texts)).as_py() or 0)


def describe_types(names: Sequence[str], kinds: Mapping[str, pa.DataType]) -> str:
    """Write types as a schema that may be put into a playbook."""
    return ", ".join(f"{name} {name_type(kinds[name])}" for name in names)
