"""Values of every type of a table's column: how databases write them, and their JSON form."""

from typing import Any

from msgspec import Struct

UUID = "00000000-0000-0000-0000-0000000000ff"


class TypedValue(Struct, frozen=True):
    """A value of a type; None where a database has no such value.

    `kind` is the type as a tabular result names it.
    """

    name: str
    kind: str
    json_form: Any
    postgres: str | None = None
    duckdb: str | None = None


def _in_duckdb(moment: str) -> str:
    """Write a moment before the year 1 as DuckDB does."""
    day, _, clock = moment.removesuffix(" BC").partition(" ")
    return f"{day} (BC) {clock}" if moment.endswith(" BC") else moment


VALUES = [
    TypedValue("int16", "int16", -32768, "(-32768)::int2", "(-32768)::smallint"),
    TypedValue("int32", "int32", 2**31 - 1, "2147483647", "2147483647"),
    TypedValue("int64", "int64", 2**53 + 1, "9007199254740993", "9007199254740993"),
    TypedValue("least int64", "int64", -(2**63), "(-9223372036854775808)::int8", "(-2^63)::bigint"),
    TypedValue("uint64", "uint64", 2**64 - 1, None, "18446744073709551615::ubigint"),
    TypedValue("38 digits", "decimal128(38, 0)", "9" * 38, f"{'9' * 38}", f"{'9' * 38}::hugeint"),
    TypedValue("39 digits", "decimal256(39, 0)", str(2**128 - 1), str(2**128 - 1)),
    TypedValue("hugeint", "decimal128(38, 0)", str(2**127 - 1), None, f"{2**127 - 1}::hugeint"),
    TypedValue("float", "float", 1.5, "1.5::float4", "1.5::float"),
    TypedValue("double", "double", 0.1, "0.1::float8", "0.1::double"),
    TypedValue("least double", "double", 5e-324, "5e-324::float8", "'5e-324'::double"),
    TypedValue("not a number", "double", "NaN", "'nan'::float8", "'nan'::double"),
    TypedValue("infinite", "double", "-Infinity", "'-inf'::float8", "'-inf'::double"),
    TypedValue("decimal", "decimal128(3, 2)", 0.3, "0.30::numeric(10,2)", "0.30::decimal(3,2)"),
    TypedValue(
        "long decimal",
        "decimal128(38, 10)",
        f"{'9' * 28}.{'1' * 10}",
        f"{'9' * 28}.{'1' * 10}::numeric(38,10)",
        f"{'9' * 28}.{'1' * 10}::decimal(38,10)",
    ),
    TypedValue(
        "wide decimal",
        "decimal256(76, 30)",
        f"{'9' * 46}.{'1' * 30}",
        f"{'9' * 46}.{'1' * 30}::numeric(76,30)",
    ),
    TypedValue("numeric that is none", "string", "NaN", "'NaN'::numeric"),
    TypedValue(name="bool", kind="bool", json_form=True, postgres="true", duckdb="true"),
    TypedValue("text", "string", "ä'\"\\\n,\U0001f600", "E'ä''\"\\\\\\n,\U0001f600'", None),
    TypedValue("empty text", "string", "", "''::text", "''"),
    TypedValue("text with NUL", "string", "a\0b", None, "'a' || chr(0) || 'b'"),
    TypedValue("date", "date32[day]", "2026-03-29", "date '2026-03-29'", "date '2026-03-29'"),
    TypedValue("last date", "date32[day]", "9999-12-31", "date '9999-12-31'", "date '9999-12-31'"),
    TypedValue(
        "later date", "date32[day]", "10000-01-01", "date '10000-01-01'", "date '10000-01-01'"
    ),
    TypedValue(
        "early date",
        "date32[day]",
        "0044-03-15 BC",
        "date '0044-03-15 BC'",
        "date '0044-03-15 (BC)'",
    ),
    TypedValue("endless date", "date32[day]", "infinity", "date 'infinity'", "date 'infinity'"),
    TypedValue(
        "time", "time64[us]", "23:59:59.999999", "time '23:59:59.999999'", "time '23:59:59.999999'"
    ),
    TypedValue("end of the day", "time64[us]", "24:00:00", "time '24:00'", "time '24:00:00'"),
    *(
        TypedValue(
            f"{name} {'with a zone' if zone else ''}",
            f"timestamp[us{', tz=UTC' if zone else ''}]",
            form.replace("Z", zone if "T" in form else zone[:3]),
            f"timestamp{'tz' * bool(zone)} '{form.replace('Z', zone)}'",
            f"timestamp{'tz' * bool(zone)} '{_in_duckdb(form.replace('Z', zone))}'",
        )
        for zone in ("", "+00:00")
        for name, form in (
            ("moment", "2026-03-29T01:30:00.000001Z"),
            ("last moment", "9999-12-31T23:59:59.999999Z"),
            ("later moment", "10000-01-01 00:00:00Z"),
            ("early moment", "0044-03-15 12:00:00Z BC"),
            ("endless moment", "infinity"),
        )
    ),
    TypedValue(
        "nanoseconds",
        "timestamp[ns]",
        "2026-03-29T01:30:00.123456789",
        None,
        "timestamp_ns '2026-03-29 01:30:00.123456789'",
    ),
    TypedValue(
        "interval",
        "month_day_nano_interval",
        "P1Y2M-3DT4H5M6.5S",
        "interval '14 mons -3 days 04:05:06.5'",
        "interval '14 months -3 days 4 hours 5 minutes 6.5 seconds'",
    ),
    TypedValue(
        "seconds",
        "month_day_nano_interval",
        90.0,
        "interval '90 seconds'",
        "interval '90 seconds'",
    ),
    TypedValue("uuid", "uuid", UUID, f"'{UUID}'::uuid", f"'{UUID}'::uuid"),
    TypedValue("bytes", "binary", "AAH/", "'\\x0001ff'::bytea", "'\\x00\\x01\\xFF'::blob"),
    TypedValue(
        "json", "json", {"a": [1, None]}, "'{\"a\": [1, null]}'::jsonb", "'{\"a\":[1,null]}'::json"
    ),
    TypedValue("list", "list<item: int32>", [1, None, 3], "array[1, null, 3]", "[1, null, 3]"),
    TypedValue(
        "struct",
        "struct<a: int32, b: decimal128(3, 2)>",
        {"a": 1, "b": 0.3},
        None,
        "{'a': 1, 'b': 0.30::decimal(3,2)}",
    ),
    TypedValue("map", "map<string, int32>", {"k": 1}, None, "map {'k': 1}"),
    TypedValue("absent", "int32", None, "null::int4", "null::integer"),
]
