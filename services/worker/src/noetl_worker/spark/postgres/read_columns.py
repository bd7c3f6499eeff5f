"""The columns of a query: how they are selected, their types in Spark, and their values as these.

A `numeric(p, s)` is a decimal of that precision and scale. One whose digits the query does not
tell is `decimal(38, 18)`: a value that does not fit is refused, never rounded. Types that Spark
has none for come as the text that PostgreSQL writes.
"""

import re
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from noetl_contracts.json_values import list_repeated_names
from noetl_playbook.templates.output_forms import sql_ident
from noetl_worker.domain import numeric_digits
from noetl_worker.spark.tables.store_access import SparkRefusal

_BATCH_ROWS = 10_000
_OPEN_DIGITS = (38, 18)
_DIGITS_MAX = 38
_ARRAY = "_"
_NUMERIC = "numeric"
_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "bytea": pa.binary(),
    "text": pa.string(),
    "varchar": pa.string(),
    "bpchar": pa.string(),
}
# No date of PostgreSQL is earlier; the client's arithmetic leaves infinite ones below.
_FIRST_DAY = -2_440_589
_FIRST_MICROSECOND = _FIRST_DAY * 86_400_000_000
_TYPE_KEY, _MODIFIER_KEY = b"POSTGRESQL:type", b"POSTGRESQL:typmod"
_NAMELESS = re.compile(r"unnamed<oid:(\d+)>")


class ReadColumn(Struct, frozen=True, kw_only=True):
    """A column; `type` is PostgreSQL's name of it, and begins with `_` for an array."""

    name: str
    type: str
    digits: tuple[int, int] | None = None

    @property
    def is_array(self) -> bool:
        """Tell whether the column is a list."""
        return self.type.startswith(_ARRAY)

    @property
    def value_type(self) -> pa.DataType:
        """Return the type of the column's values, or of their elements."""
        plain = self.type.removeprefix(_ARRAY)
        if plain == _NUMERIC:
            return pa.decimal128(*(self.digits or _OPEN_DIGITS))
        if plain == "oid":
            return pa.int64()
        return _TYPES.get(plain, pa.string())

    @property
    def arrow_type(self) -> pa.DataType:
        """Return the type of the column in Spark."""
        return pa.list_(self.value_type) if self.is_array else self.value_type

    def format_selection(self) -> str:
        """Write what selects the column from `source`."""
        name: str = sql_ident(self.name)
        plain = self.type.removeprefix(_ARRAY)
        brackets = "[]" if self.is_array else ""
        if plain == "oid":
            return f"source.{name}::int8{brackets} as {name}"
        if plain in _TYPES or (plain == _NUMERIC and not self.is_array):
            return f"source.{name}"
        return f"source.{name}::text{brackets} as {name}"


def list_columns(schema: pa.Schema, array_oids: frozenset[int], *, about: str) -> list[ReadColumn]:
    """Read the columns that the client describes; raises `SparkRefusal`.

    `array_oids` are the types without a name here that are arrays.
    """
    columns = [_read_column(field, array_oids) for field in schema]
    if not columns:
        raise SparkRefusal("validation", f"{about}: the query returns no columns")
    if repeated_names := list_repeated_names(column.name for column in columns):
        text = (
            f"{about}: the query has several columns named '{repeated_names[0]}': give them "
            "names with AS"
        )
        raise SparkRefusal("schema", text)
    return columns


def list_nameless_oids(schema: pa.Schema) -> list[int]:
    """Return the types that the client has no name for, such as enums and their arrays."""
    matches = (_NAMELESS.fullmatch(_read_type(field)) for field in schema)
    return [int(match[1]) for match in matches if match is not None]


def _read_type(field: pa.Field) -> str:
    name: bytes = (field.metadata or {}).get(_TYPE_KEY, b"text")
    return name.decode()


def _read_column(field: pa.Field, array_oids: frozenset[int]) -> ReadColumn:
    kind = _read_type(field)
    nameless = _NAMELESS.fullmatch(kind)
    if nameless is not None:
        kind = f"{_ARRAY}text_form" if int(nameless[1]) in array_oids else "text_form"
    if kind != _NUMERIC:
        return ReadColumn(name=field.name, type=kind)
    modifier = int((field.metadata or {}).get(_MODIFIER_KEY, numeric_digits.NO_MODIFIER))
    precision, scale = numeric_digits.parse_digits(modifier)
    if precision is None:
        return ReadColumn(name=field.name, type=kind)
    # PostgreSQL allows a scale above the precision, and one below 0.
    precision = max(precision, scale) if scale >= 0 else precision - scale
    digits = (min(precision, _DIGITS_MAX), min(max(scale, 0), _DIGITS_MAX))
    return ReadColumn(name=field.name, type=kind, digits=digits)


def format_selections(columns: Sequence[ReadColumn]) -> str:
    """Write what selects all columns, and behind them the dimensions of each array."""
    arrays = [column for column in columns if column.is_array]
    return ", ".join(
        [
            *(column.format_selection() for column in columns),
            *(f"array_ndims(source.{sql_ident(column.name)})" for column in arrays),
        ]
    )


def build_schema(columns: Sequence[ReadColumn]) -> pa.Schema:
    """Return the schema of the rows that Spark gets."""
    return pa.schema([pa.field(column.name, column.arrow_type) for column in columns])


def convert_batch(
    batch: pa.RecordBatch, columns: Sequence[ReadColumn], *, about: str
) -> Iterator[pa.RecordBatch]:
    """Give the client's columns the types of Spark; raises `SparkRefusal` that names the column."""
    dimensions = iter(batch.columns[len(columns) :])
    arrays = []
    for column, values in zip(columns, batch.columns, strict=False):
        if column.is_array and (pc.max(next(dimensions)).as_py() or 0) > 1:
            text = (
                f"{about}: column '{column.name}' holds an array of several dimensions, and "
                "Spark's lists have one: read it as text, or as to_jsonb of it, in the query"
            )
            raise SparkRefusal("schema", text)
        arrays.append(_convert_values(values, column, about))
    converted = pa.RecordBatch.from_arrays(arrays, schema=build_schema(columns))
    for start in range(0, converted.num_rows, _BATCH_ROWS):
        yield converted.slice(start, _BATCH_ROWS)


def _convert_values(values: pa.Array, column: ReadColumn, about: str) -> pa.Array:
    if isinstance(values.type, pa.BaseExtensionType):
        values = values.storage
    _check_moments(values, column, about)
    if values.type.equals(column.arrow_type):
        return values
    if not pa.types.is_decimal(column.value_type):
        return values.cast(column.arrow_type)
    if not column.is_array:
        return _parse_decimals(values, column, about)
    elements = _parse_decimals(values.values, column, about)
    return pa.ListArray.from_arrays(values.offsets, elements, mask=values.is_null())


def _parse_decimals(texts: pa.Array, column: ReadColumn, about: str) -> pa.Array:
    """Read texts as the column's decimals, each exactly.

    Arrow's cast wraps around when it scales a number past 128 bits, so the digits are checked
    before it.
    """
    kind = column.value_type
    whole_digits, scale = max(1, kind.precision - kind.scale), kind.scale
    fraction = rf"(?:\.\d{{1,{scale}}})?" if scale else ""
    pattern = rf"^-?\d{{1,{whole_digits}}}{fraction}$"
    is_fitting = pc.match_substring_regex(texts, pattern)
    if pc.all(is_fitting).as_py() is False:
        # An average has more digits behind the point than it needs.
        texts = pc.replace_substring_regex(texts, r"(\.\d*?)0+$", r"\1")
        texts = pc.replace_substring_regex(texts, r"\.$", "")
        is_fitting = pc.match_substring_regex(texts, pattern)
    if pc.all(is_fitting).as_py() is False:
        raise _build_unfit_refusal(texts.filter(pc.invert(is_fitting)), column, about)
    try:
        return texts.cast(kind)
    except pa.ArrowException as problem:
        raise _build_unfit_refusal(texts, column, about) from problem


def _check_moments(values: pa.Array, column: ReadColumn, about: str) -> None:
    """Refuse infinite dates and moments, which Spark does not have."""
    kind = column.value_type
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        return
    flat = values.flatten() if column.is_array else values
    first = _FIRST_DAY if pa.types.is_date(kind) else _FIRST_MICROSECOND
    plain = flat.cast(pa.int32() if pa.types.is_date(kind) else pa.int64())
    earliest = pc.min(plain).as_py()
    if earliest is not None and earliest < first:
        text = (
            f"{about}: column '{column.name}' holds infinity, or a moment after the year 294247, "
            "which Spark does not have: replace it in the query, or cast it to text"
        )
        raise SparkRefusal("schema", text)


def _build_unfit_refusal(texts: pa.Array, column: ReadColumn, about: str) -> SparkRefusal:
    unfit = next(text for text in texts.to_pylist() if text is not None)
    text = (
        f"{about}: column '{column.name}' holds {unfit:.60}, which does not fit "
        f"{column.value_type}: name its digits in the query, as in "
        f"{sql_ident(column.name)}::numeric(38, 4), or cast it to text or to double precision"
    )
    return SparkRefusal("schema", text)
