"""Types of a table's columns: writes Arrow types as text, parses them, merges those of two tables.

A tabular result carries them as `types`, a list beside `columns`. Kinds of one meaning have one
name: a large string is a `string`, a dictionary is what its values are.
"""

import re
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute

from noetl_contracts import codec
from noetl_contracts.errors import Permanent
from noetl_storage.arrow import calendar_text

Kinds = Mapping[str, pa.DataType]

DECIMAL_DIGITS_MAX = 38
WIDE_DECIMAL_DIGITS_MAX = 76

_TOKEN = re.compile(r'\s*(?:(?P<name>"(?:[^"\\]|\\.)*"|[^\s<>\[\](),:"]+)|(?P<sign>[<>\[\](),:]))')
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNITS = ("s", "ms", "us", "ns")
_ALIASES = {"float32": "float", "float64": "double", "float16": "halffloat", "str": "string"}
_SIMPLE = {
    str(kind): kind
    for kind in (
        *(pa.null(), pa.bool_(), pa.string(), pa.binary(), pa.month_day_nano_interval()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
        *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64()),
    )
} | {"uuid": pa.uuid(), "json": pa.json_(), "date32": pa.date32()}
# How many digits and, of a fraction, how many bits a type of number holds exactly.
_INTEGER_BITS = {f"{sign}int{bits}": bits for sign in ("", "u") for bits in (8, 16, 32, 64)}
_FLOAT_BITS = {"halffloat": 11, "float": 24, "double": 53}


class SchemaMismatch(Permanent):
    """A table cannot be made as the types of its columns say."""


class UnknownType(SchemaMismatch):
    """A text names no type of a column."""


class UnportableValue(SchemaMismatch):
    """A value is none of its type for who reads the table."""


class IncompatibleTypes(SchemaMismatch):
    """Two tables that are to be one have a column of types that no type holds both of."""


def build_map_type(key: pa.DataType, item: pa.DataType) -> pa.DataType:
    """Return a type of maps; those without a type of keys are empty, and texts are keys as well."""
    return pa.map_(pa.string() if pa.types.is_null(key) else key, item)


def format_arrow_type(kind: pa.DataType) -> str:
    """Write a type as the text that `types` holds."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        name = kind.extension_name.removeprefix("arrow.")
        return name if name in ("uuid", "json") else format_arrow_type(kind.storage_type)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return format_arrow_type(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return "string"
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return "binary"
    if types.is_date64(kind):
        return str(pa.date32())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return f"list<item: {format_arrow_type(kind.value_type)}>"
    if types.is_map(kind):
        return f"map<{format_arrow_type(kind.key_type)}, {format_arrow_type(kind.item_type)}>"
    if types.is_struct(kind):
        fields = (
            f"{_format_field_name(item.name)}: {format_arrow_type(item.type)}" for item in kind
        )
        return f"struct<{', '.join(fields)}>"
    if types.is_decimal(kind):
        wide = kind.precision > DECIMAL_DIGITS_MAX
        return f"decimal{256 if wide else 128}({kind.precision}, {kind.scale})"
    # Of a union each value has a type of its own: JSON says which.
    return "json" if types.is_union(kind) else str(kind)


def format_schema(schema: pa.Schema) -> list[str]:
    """Write the types of a table's columns, in their order."""
    return [format_arrow_type(item.type) for item in schema]


def parse_arrow_type(text: str) -> pa.DataType:
    """Read a type from its text; raises `UnknownType`."""
    reader = _TypeReader(text)
    kind = reader.parse_type()
    reader.expect_end()
    return kind


def parse_column_kinds(columns: Sequence[str], types: Sequence[object]) -> dict[str, pa.DataType]:
    """Read the types of columns; raises `UnknownType` that names the column."""
    if len(types) != len(columns):
        text = f"'types' has {len(types)} entries for {len(columns)} columns: give one for each"
        raise UnknownType(text)
    data_types: dict[str, pa.DataType] = {}
    for name, type_text in zip(columns, types, strict=True):
        try:
            data_types[name] = parse_arrow_type(type_text if isinstance(type_text, str) else "")
        except UnknownType as problem:
            raise UnknownType(f"the type of column '{name}' cannot be read: {problem}") from problem
    return data_types


def build_decimal_type(digits: int, scale: int) -> pa.DataType:
    """Return the type of decimals of so many digits; raises `ValueError` where Arrow has none."""
    if digits <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(digits, scale)
    return pa.decimal256(digits, scale)


class _TypeReader:
    """Reads one type from a text, token by token."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[str] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            if match is None:
                raise self._build_unknown_error()
            self._tokens.append(match["name"] or match["sign"])
            at = match.end()
        self._tokens.reverse()

    def parse_type(self) -> pa.DataType:
        name = self._take_token()
        name = _ALIASES.get(name, name)
        if name in ("date32", "date") and self._peek_token() == "[":
            self._parse_unit(("day",))
            return pa.date32()
        if name in _SIMPLE:
            return _SIMPLE[name]
        match name:
            case "decimal128" | "decimal256" | "decimal":
                return self._parse_decimal()
            case "timestamp":
                return self._parse_timestamp()
            case "time32" | "time64":
                unit = self._parse_unit(("s", "ms") if name == "time32" else ("us", "ns"))
                return pa.time32(unit) if name == "time32" else pa.time64(unit)
            case "duration":
                return pa.duration(self._parse_unit(_UNITS))
            case "list":
                return self._parse_list()
            case "struct":
                return self._parse_struct()
            case "map":
                return self._parse_map()
        raise self._build_unknown_error()

    def expect_end(self) -> None:
        """Refuse what follows a type; raises `UnknownType`."""
        if self._tokens:
            raise self._build_unknown_error()

    def _parse_decimal(self) -> pa.DataType:
        self._expect_sign("(")
        digits = self._parse_number()
        self._expect_sign(",")
        scale = self._parse_number()
        self._expect_sign(")")
        try:
            return build_decimal_type(digits, scale)
        except ValueError as problem:
            raise UnknownType(f"{self._text!r:.80} is no type: {problem}") from problem

    def _parse_timestamp(self) -> pa.DataType:
        self._expect_sign("[")
        unit = self._take_token()
        zone = None
        if self._peek_token() == ",":
            self._take_token()
            zone = self._take_token().removeprefix("tz=")
            # A zone may be an offset, which has a sign of ours in it.
            while self._peek_token() not in ("]", None):
                zone += self._take_token()
        self._expect_sign("]")
        if unit not in _UNITS:
            raise self._build_unknown_error()
        return pa.timestamp(unit, zone)

    def _parse_list(self) -> pa.DataType:
        self._expect_sign("<")
        kind = self._parse_field()[1]
        self._expect_sign(">")
        return pa.list_(kind)

    def _parse_struct(self) -> pa.DataType:
        self._expect_sign("<")
        fields: list[tuple[str, pa.DataType]] = []
        while self._peek_token() != ">":
            if fields:
                self._expect_sign(",")
            fields.append(self._parse_field())
        self._expect_sign(">")
        return pa.struct(fields)

    def _parse_map(self) -> pa.DataType:
        self._expect_sign("<")
        key = self.parse_type()
        self._expect_sign(",")
        item = self.parse_type()
        self._expect_sign(">")
        return build_map_type(key, item)

    def _parse_field(self) -> tuple[str, pa.DataType]:
        name = self._take_token()
        self._expect_sign(":")
        return (str(codec.decode_json(name)) if name.startswith('"') else name), self.parse_type()

    def _parse_unit(self, known_names: Sequence[str]) -> str:
        self._expect_sign("[")
        unit = self._take_token()
        self._expect_sign("]")
        if unit not in known_names:
            raise self._build_unknown_error()
        return unit

    def _parse_number(self) -> int:
        text = self._take_token()
        if not text.removeprefix("-").isdecimal():
            raise self._build_unknown_error()
        return int(text)

    def _peek_token(self) -> str | None:
        return self._tokens[-1] if self._tokens else None

    def _take_token(self) -> str:
        if not self._tokens:
            raise self._build_unknown_error()
        return self._tokens.pop()

    def _expect_sign(self, sign: str) -> None:
        if self._take_token() != sign:
            raise self._build_unknown_error()

    def _build_unknown_error(self) -> UnknownType:
        text = (
            f"{self._text!r:.80} is no type: use Arrow's names, as in int64, double, string, "
            "decimal128(10, 2), timestamp[us, tz=UTC], list<item: int64>"
        )
        return UnknownType(text)


def _format_field_name(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else codec.encode_text(name)


def unify_kinds(tables: Sequence[tuple[Kinds, Sequence[str]]]) -> dict[str, pa.DataType]:
    """Return the type of every column of tables that are laid below each other.

    Raises `IncompatibleTypes` that names the column. A column without a type in one of the tables
    that have it has none.
    """
    data_types: dict[str, pa.DataType] = {}
    untyped = {name for kinds, columns in tables for name in columns if name not in kinds}
    for kinds, _ in tables:
        for name, kind in kinds.items():
            if name in untyped:
                continue
            known_names = data_types.get(name)
            data_types[name] = kind if known_names is None else unify_types(name, known_names, kind)
    return data_types


def unify_types(name: str, data_type: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return a type that holds every value of both exactly; raises `IncompatibleTypes`."""
    common_type = _find_common_type(data_type, other)
    if common_type is None:
        text = (
            f"column '{name}' is {format_arrow_type(data_type)} in one table and "
            f"{format_arrow_type(other)} in another, and no type holds both exactly: cast it to "
            "one type in the queries"
        )
        raise IncompatibleTypes(text)
    return common_type


def _find_common_type(data_type: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    data_type, other = (parse_arrow_type(format_arrow_type(kind)) for kind in (data_type, other))
    if data_type.equals(other) or pa.types.is_null(other):
        return data_type
    if pa.types.is_null(data_type):
        return other
    if pa.types.is_timestamp(data_type) and pa.types.is_timestamp(other):
        if (data_type.tz is None) != (other.tz is None):
            return None
        unit = max(data_type.unit, other.unit, key=_UNITS.index)
        return pa.timestamp(unit, data_type.tz if data_type.tz == other.tz else "UTC")
    if pa.types.is_list(data_type) and pa.types.is_list(other):
        inner = _find_common_type(data_type.value_type, other.value_type)
        return None if inner is None else pa.list_(inner)
    if pa.types.is_struct(data_type) and pa.types.is_struct(other):
        return _find_common_struct(data_type, other)
    return _find_common_number(data_type, other)


def _find_common_struct(struct_type: pa.StructType, other: pa.StructType) -> pa.DataType | None:
    kinds: dict[str, pa.DataType] = {field.name: field.type for field in struct_type}
    for field in other:
        known_names = kinds.get(field.name)
        kind = field.type if known_names is None else _find_common_type(known_names, field.type)
        if kind is None:
            return None
        kinds[field.name] = kind
    return pa.struct(list(kinds.items()))


def _find_common_number(data_type: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    names = (str(data_type), str(other))
    if any(name in _FLOAT_BITS for name in names):
        widest = max(names, key=lambda name: _FLOAT_BITS.get(name, 0))
        narrow = min(names, key=lambda name: _FLOAT_BITS.get(name, 0))
        bits = _FLOAT_BITS.get(narrow, _INTEGER_BITS.get(narrow))
        if bits is None:
            return None
        wide_enough = (
            kind
            for kind, float_bits in _FLOAT_BITS.items()
            if float_bits >= max(bits, _FLOAT_BITS[widest])
        )
        common_name = next(wide_enough, None)
        return None if common_name is None else _SIMPLE[common_name]
    sizes = [_count_digits(kind) for kind in (data_type, other)]
    if any(size is None for size in sizes):
        return None
    if all(name in _INTEGER_BITS for name in names):
        signed = any(not name.startswith("u") for name in names)
        bits_needed = max(
            _INTEGER_BITS[name] * (2 if signed and name.startswith("u") else 1) for name in names
        )
        if bits_needed <= 64:  # noqa: PLR2004 - the widest type of integers
            return _SIMPLE[f"{'' if signed else 'u'}int{bits_needed}"]
    whole_digits = max(size[0] for size in sizes if size)
    scale = max(size[1] for size in sizes if size)
    if whole_digits + scale > WIDE_DECIMAL_DIGITS_MAX:
        return None
    return build_decimal_type(whole_digits + scale, scale)


def _count_digits(kind: pa.DataType) -> tuple[int, int] | None:
    """Return how many digits a type has before and after its point, None of what is no number."""
    if pa.types.is_decimal(kind):
        return kind.precision - kind.scale, kind.scale
    name = str(kind)
    if name not in _INTEGER_BITS:
        return None
    return len(str(2 ** (_INTEGER_BITS[name] - (not name.startswith("u"))))), 0


def check_portable(table: pa.Table, format_: str = "arrow") -> None:
    """Refuse what Arrow's types only hold as DuckDB reads them; raises `UnportableValue`.

    The last date and moment of a type are DuckDB's infinity, and 24:00 is past Arrow's last time.
    Parquet has no type for intervals of months.
    """
    for field, column in zip(table.schema, table.columns, strict=True):
        if format_ == "parquet" and pa.types.is_interval(field.type):
            text = (
                f"column '{field.name}' is an interval of months, days and seconds, for which "
                "Parquet has no type: cast it to text, or to seconds, in the query"
            )
            raise UnportableValue(text)
        last = _get_last_value(field.type)
        if last is None or not table.num_rows:
            continue
        width = pa.int32() if field.type.bit_width == 32 else pa.int64()  # noqa: PLR2004 - bits
        numbers = pa.chunked_array([chunk.view(width) for chunk in column.chunks], width)
        ends = pyarrow.compute.min_max(numbers).as_py()
        if ends["min"] is not None and (ends["max"] >= last or ends["min"] <= -last):
            text = (
                f"column '{field.name}' holds infinity or 24:00, which a column of type "
                f"{format_arrow_type(field.type)} cannot hold outside of a database: cast it to "
                "text, or replace such values, in the query"
            )
            raise UnportableValue(text)


def _get_last_value(kind: pa.DataType) -> int | None:
    if pa.types.is_date32(kind):
        return calendar_text.DATE_INFINITY
    if pa.types.is_timestamp(kind):
        return calendar_text.MOMENT_INFINITY
    is_time = pa.types.is_time(kind)
    return calendar_text.DAY_S * calendar_text.UNIT_PER_S[kind.unit] if is_time else None
