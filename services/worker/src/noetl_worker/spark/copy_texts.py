"""Columns as the texts that PostgreSQL copies, written by Arrow where it writes the same."""

import pyarrow as pa
import pyarrow.compute as pc

# Years 1 to 9999 in microseconds since 1970; others are written in PostgreSQL's own way.
_MICROSECONDS_MIN = -62_135_596_800_000_000
_MICROSECONDS_MAX = 253_402_300_799_999_999
# Such decimals are exact as floats, whose texts have no exponent.
_FLOAT_DIGITS_MAX = 15
_FLOAT_SCALE_MAX = 4


def find_texts(values: pa.Array) -> pa.Array | None:
    """Write a column as texts; None for a type of which each value has to be looked at."""
    kind, types = values.type, pa.types
    if types.is_string(kind) or types.is_integer(kind) or types.is_date(kind):
        return values.cast(pa.string())
    if types.is_boolean(kind):
        return values.cast(pa.string())
    if types.is_decimal128(kind):
        return _find_decimals(values)
    if types.is_timestamp(kind) and kind.unit == "us" and kind.tz in (None, "UTC"):
        return _find_moments(values, zone="" if kind.tz is None else "+00:00")
    return None


def _find_decimals(values: pa.Array) -> pa.Array | None:
    kind = values.type
    if kind.precision > _FLOAT_DIGITS_MAX or not 0 <= kind.scale <= _FLOAT_SCALE_MAX:
        return None
    texts = values.cast(pa.string())
    if kind.scale == 0:
        return texts
    # 1.50 is 1.5, and 1.00 is 1.0.
    return pc.replace_substring_regex(texts, r"(\.\d+?)0+$", r"\1")


def _find_moments(values: pa.Array, *, zone: str) -> pa.Array | None:
    count = values.cast(pa.int64())
    span = pc.min_max(count)
    least, most = span["min"].as_py(), span["max"].as_py()
    if least is not None and (least < _MICROSECONDS_MIN or most > _MICROSECONDS_MAX):
        return None
    # Without a zone the cast needs no look at zones' rules: UTC has none.
    texts = count.cast(pa.timestamp("us")).cast(pa.string())
    texts = pc.replace_substring(texts, " ", "T", max_replacements=1)
    texts = pc.replace_substring_regex(texts, r"\.000000$", "")
    return pc.binary_join_element_wise(texts, zone, "") if zone else texts
