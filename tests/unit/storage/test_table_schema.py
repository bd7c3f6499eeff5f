"""The types of columns as text, and the one type of two tables' columns."""

import pyarrow as pa
import pytest

from noetl_storage.arrow import row_tables, table_schema
from noetl_storage.arrow.row_tables import RowTable
from noetl_storage.arrow.table_schema import (
    IncompatibleTypes,
    UnknownType,
    parse_arrow_type,
    unify_types,
)

TEXTS = [
    *("null", "bool", "int8", "uint64", "halffloat", "float", "double", "string", "binary"),
    *("decimal128(10, 2)", "decimal256(76, 30)", "date32[day]", "time32[ms]", "time64[us]"),
    *("timestamp[us]", "timestamp[ns, tz=UTC]", "timestamp[s, tz=Europe/Berlin]"),
    *("timestamp[us, tz=+01:00]", "duration[us]", "month_day_nano_interval", "uuid", "json"),
    *("list<item: list<item: uuid>>", "struct<>", 'struct<a: int64, "b c:<": json>'),
    "map<string, struct<a: decimal128(3, 1)>>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_type_reads_back_from_its_text(text: str) -> None:
    assert table_schema.format_arrow_type(parse_arrow_type(text)) == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.large_string(), "string"),
        (pa.dictionary(pa.int8(), pa.string()), "string"),
        (pa.binary(16), "binary"),
        (pa.list_(pa.large_binary(), 2), "list<item: binary>"),
        (pa.date64(), "date32[day]"),
        (pa.decimal256(10, 2), "decimal128(10, 2)"),
    ],
)
def test_kinds_of_one_meaning_have_one_name(kind: pa.DataType, text: str) -> None:
    assert table_schema.format_arrow_type(kind) == text


@pytest.mark.parametrize(
    "text",
    ["", "int", "INTEGER", "decimal128(77, 2)", "decimal128(10)", "list<int64>", "int64 x", "map<"],
)
def test_what_is_no_type_is_refused_with_the_column(text: str) -> None:
    with pytest.raises(UnknownType, match="column 'a'"):
        table_schema.parse_column_kinds(["a"], [text])


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("int32", "int64", "int64"),
        ("uint32", "int8", "int64"),
        ("uint64", "int64", "decimal128(20, 0)"),
        ("null", "uuid", "uuid"),
        ("decimal128(3, 2)", "decimal128(10, 0)", "decimal128(12, 2)"),
        ("decimal128(38, 0)", "decimal128(3, 2)", "decimal256(40, 2)"),
        ("int64", "decimal128(3, 2)", "decimal128(21, 2)"),
        ("float", "double", "double"),
        ("int32", "double", "double"),
        ("int16", "float", "float"),
        ("int32", "float", "double"),
        ("timestamp[us]", "timestamp[ns]", "timestamp[ns]"),
        ("timestamp[us, tz=UTC]", "timestamp[us, tz=Asia/Tokyo]", "timestamp[us, tz=UTC]"),
        ("list<item: int8>", "list<item: int16>", "list<item: int16>"),
        ("struct<a: int8>", "struct<a: int16, b: json>", "struct<a: int16, b: json>"),
    ],
)
def test_two_types_have_the_one_that_holds_both_exactly(one: str, other: str, both: str) -> None:
    for pair in ((one, other), (other, one)):
        types = unify_types("v", *map(parse_arrow_type, pair))
        assert table_schema.format_arrow_type(types) == both


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *(("int64", "double"), ("decimal128(3, 2)", "double"), ("int64", "string")),
        *(("timestamp[us]", "timestamp[us, tz=UTC]"), ("date32[day]", "timestamp[us]")),
        *(("decimal256(76, 0)", "decimal128(3, 2)"), ("list<item: int64>", "list<item: double>")),
        ("uuid", "string"),
    ],
)
def test_types_that_nothing_holds_both_of_are_refused_by_column_and_name(
    one: str, other: str
) -> None:
    with pytest.raises(IncompatibleTypes, match="column 'v'") as found:
        unify_types("v", parse_arrow_type(one), parse_arrow_type(other))
    assert one in str(found.value)
    assert other in str(found.value)


def a_table(kind: str, *values: object, name: str = "v") -> dict[str, object]:
    return {"columns": [name], "types": [kind], "rows": [{name: value} for value in values]}


def test_tables_below_each_other_keep_their_types() -> None:
    joined = row_tables.join_results(
        [a_table("decimal128(3, 2)", 0.1), a_table("int64", 2**53 + 1)]
    )
    assert joined["types"] == ["decimal128(21, 2)"]
    row_table = row_tables.read_row_table(joined)
    assert row_table is not None
    column = row_tables.build_table(*row_table).column("v")
    assert [str(value) for value in column.to_pylist()] == ["0.10", "9007199254740993.00"]


def test_a_column_without_a_type_in_one_of_the_tables_has_none() -> None:
    plain = {"columns": ["v"], "rows": [{"v": 1}]}
    assert "types" not in row_tables.join_results([a_table("int8", 1), plain])
    # Where a table lacks the column altogether, its type stays.
    joined = row_tables.join_results(
        [a_table("int8", 1), a_table("date32[day]", "2026-01-01", name="d")]
    )
    assert joined["types"] == ["int8", "date32[day]"]


def test_tables_of_unlike_types_are_not_laid_below_each_other() -> None:
    with pytest.raises(IncompatibleTypes, match=r"column 'v' is int64 .* double"):
        row_tables.join_results([a_table("int64", 1), a_table("double", 0.5)])


def test_numbers_of_rows_without_types_stay_what_they_are() -> None:
    def column(*values: object) -> pa.ChunkedArray:
        return row_tables.build_table([{"v": value} for value in values]).column("v")

    assert column(1, 2.5).type == pa.float64()
    assert column(2**63, 1).type == pa.uint64()
    assert [str(v) for v in column(2**70, -1).to_pylist()] == [str(2**70), "-1"]
    assert [str(v) for v in column(2**53 + 1, 0.5).to_pylist()] == [f"{2**53 + 1}.0", "0.5"]
    with pytest.raises(row_tables.UnfitCell, match="column 'v' holds numbers"):
        column(2**53 + 1, 1e300)
    assert column(1, "x").to_pylist() == ["1", "x"]


def test_a_union_counts_its_parts() -> None:
    parts = [
        RowTable([{"v": 1}], ["v"], {"v": pa.int8()}),
        RowTable([{"v": 300}], ["v"], {"v": pa.int16()}),
    ]
    table = row_tables.build_table(*row_tables.unite_tables(parts, part_column="_part"))
    assert table.schema == pa.schema([("v", pa.int16()), ("_part", pa.int64())])
    assert table.to_pylist() == [{"v": 1, "_part": 0}, {"v": 300, "_part": 1}]


def test_maps_without_a_type_of_keys_are_read_back_as_empty_maps_of_texts() -> None:
    assert parse_arrow_type("map<null, null>") == pa.map_(pa.string(), pa.null())


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([1, 2, 3], r"row 1 has 3 values for 2 columns \(a, b\): give each row one value a column"),
        ([1], "row 1 has 1 values for 2 columns"),
    ],
)
def test_a_row_that_is_no_row_of_its_columns_is_refused(row: list[int], text: str) -> None:
    with pytest.raises(table_schema.SchemaMismatch, match=text):
        row_tables.read_row_table({"columns": ["a", "b"], "rows": [[1, 2], row]})


def test_a_value_of_no_column_is_refused_and_a_missing_one_is_none() -> None:
    strange = {"columns": ["a", "b"], "rows": [{"a": 1, "b": 2}, {"a": 1, "c": 3}]}
    text = r"row 1 has a value 'c' that is none of the columns \(a, b\): name it among them"
    with pytest.raises(table_schema.SchemaMismatch, match=text):
        row_tables.read_row_table(strange)
    fewer = row_tables.read_row_table({"columns": ["a", "b"], "rows": [{"a": 1}]})
    assert fewer is not None
    assert fewer.column_names() == ["a", "b"]
