"""Values of PostgreSQL's types: ordinary, extreme and odd, each with the JSON form that is read."""

from typing import Any

from msgspec import Struct


class PostgresValue(Struct, frozen=True):
    """A literal of a type, and what a worker reads for it."""

    type_name: str
    literal: str
    json_form: Any


LONG_NUMBER = "9" * 500 + "." + "1" * 500

VALUES = [
    PostgresValue(*case)
    for case in [
        ("bool", "t", True),
        ("int2", "-32768", -32768),
        ("int4", "2147483647", 2147483647),
        ("int8", "-9223372036854775808", -(2**63)),
        ("int8", "9007199254740993", 9007199254740993),
        ("oid", "4294967295", 4294967295),
        ("float4", "1.5", 1.5),
        ("float4", "NaN", "NaN"),
        ("float8", "0.1", 0.1),
        ("float8", "1.7976931348623157e+308", 1.7976931348623157e308),
        ("float8", "5e-324", 5e-324),
        ("float8", "NaN", "NaN"),
        ("float8", "Infinity", "Infinity"),
        ("float8", "-Infinity", "-Infinity"),
        ("numeric", "1.5", 1.5),
        ("numeric", "0.1", 0.1),
        ("numeric", "100000", 100000),
        ("numeric", "9223372036854775807", 2**63 - 1),
        ("numeric", "9223372036854775808", "9223372036854775808"),
        ("numeric", "90071992547409930000", "90071992547409930000"),
        ("numeric", "0.12345678901234567890", "0.12345678901234567890"),
        ("numeric", LONG_NUMBER, LONG_NUMBER),
        ("numeric", "NaN", "NaN"),
        ("numeric", "Infinity", "Infinity"),
        ("numeric", "-Infinity", "-Infinity"),
        ("text", "", ""),
        ("text", " \t\n\\N \\. ,\"'ä\U0001f600", " \t\n\\N \\. ,\"'ä\U0001f600"),
        ("varchar", "NULL", "NULL"),
        ("bpchar", "a ", "a "),
        ("name", "a", "a"),
        ('"char"', "a", "a"),
        ('"char"', "", ""),
        ("date", "2026-02-03", "2026-02-03"),
        ("date", "9999-12-31", "9999-12-31"),
        ("date", "0001-01-01", "0001-01-01"),
        ("date", "10000-01-01", "10000-01-01"),
        ("date", "5874897-12-31", "5874897-12-31"),
        ("date", "0044-03-15 BC", "0044-03-15 BC"),
        ("date", "4713-01-01 BC", "4713-01-01 BC"),
        ("date", "infinity", "infinity"),
        ("date", "-infinity", "-infinity"),
        ("timestamp", "2026-02-03 04:05:06.789012", "2026-02-03T04:05:06.789012"),
        ("timestamp", "9999-12-31 23:59:59.999999", "9999-12-31T23:59:59.999999"),
        ("timestamp", "0001-01-01 00:00:00", "0001-01-01T00:00:00"),
        ("timestamp", "10000-01-01 00:00:00", "10000-01-01 00:00:00"),
        ("timestamp", "294276-12-31 23:59:59.999999", "294276-12-31 23:59:59.999999"),
        ("timestamp", "0044-03-15 01:02:03.5 BC", "0044-03-15 01:02:03.5 BC"),
        ("timestamp", "infinity", "infinity"),
        ("timestamp", "-infinity", "-infinity"),
        ("timestamptz", "2026-02-03 04:05:06+05:30", "2026-02-02T22:35:06+00:00"),
        ("timestamptz", "9999-12-31 23:59:59.999999+00", "9999-12-31T23:59:59.999999+00:00"),
        ("timestamptz", "0001-01-01 00:00:00+00", "0001-01-01T00:00:00+00:00"),
        ("timestamptz", "0044-03-15 00:00:00+00 BC", "0044-03-15 00:00:00+00 BC"),
        ("timestamptz", "infinity", "infinity"),
        ("timestamptz", "-infinity", "-infinity"),
        ("time", "04:05:06.789012", "04:05:06.789012"),
        ("time", "24:00:00", "24:00:00"),
        ("timetz", "04:05:06+02", "04:05:06+02:00"),
        ("timetz", "24:00:00-15:59:59", "24:00:00-15:59:59"),
        ("interval", "90 seconds", 90.0),
        ("interval", "-0.000001 seconds", -0.000001),
        ("interval", "1 mon", "P1M"),
        ("interval", "30 days", "P30D"),
        ("interval", "1 year 2 mons -3 days 04:05:06.789", "P1Y2M-3DT4H5M6.789S"),
        ("interval", "-1 year +2 days -00:00:01", "P-1Y2DT-1S"),
        ("interval", "2562047788:00:54.775807", "PT2562047788H54.775807S"),
        ("uuid", "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000001"),
        ("bytea", "\\x0001ff", "AAH/"),
        ("bytea", "", ""),
        ("jsonb", '{"a": [1, null, "x"]}', {"a": [1, None, "x"]}),
        ("jsonb", '{"n": 9007199254740993}', {"n": 9007199254740993}),
        ("inet", "10.0.0.1", "10.0.0.1"),
        ("inet", "10.0.0.1/24", "10.0.0.1/24"),
        ("cidr", "10.0.0.0/8", "10.0.0.0/8"),
        ("macaddr", "08:00:2b:01:02:03", "08:00:2b:01:02:03"),
        ("money", "$12.50", "$12.50"),
        ("bit(5)", "10101", "10101"),
        ("varbit", "101010101", "101010101"),
        ("int4range", "[1,5)", "[1,5)"),
        ("int4range", "empty", "empty"),
        ("numrange", "[0.1,Infinity]", "[0.1,Infinity]"),
        ("daterange", "[2026-01-01,infinity)", "[2026-01-01,infinity)"),
        ("daterange", "(,9999-12-31)", "(,9999-12-31)"),
        ("tsrange", '["0044-03-15 00:00:00 BC",)', '["0044-03-15 00:00:00 BC",)'),
        ("int4multirange", "{[1,2),[5,6)}", ["[1,2)", "[5,6)"]),
        ("tsvector", "'a' 'b'", "'a' 'b'"),
        ("path", "[(0,0),(1.5,1)]", "[(0.0,0.0),(1.5,1.0)]"),
        ("path", "((0,0),(1,1))", "((0.0,0.0),(1.0,1.0))"),
        ("point", "(1.5,NaN)", [1.5, "NaN"]),
        ("polygon", "((0,0),(1,1),(1,0))", [[0.0, 0.0], [1.0, 1.0], [1.0, 0.0]]),
        ("circle", "<(1,2),3>", [[1.0, 2.0], 3.0]),
        ("mood", "it's", "it's"),
        ("positive", "5", 5),
        ("day", "infinity", "infinity"),
        ("pair", "(9999-12-31,1.50)", {"d": "9999-12-31", "n": 1.5}),
        ("pair", "(infinity,NaN)", {"d": "infinity", "n": "NaN"}),
    ]
]
# Their JSON form is a list, which no text of theirs is.
SHAPES = frozenset({"point", "polygon", "circle", "int4multirange", "pair"})
TYPES_SQL = """
create type mood as enum ('it''s', 'fine');
create domain positive as int check (value > 0);
create domain day as date;
create type pair as (d date, n numeric)
"""
