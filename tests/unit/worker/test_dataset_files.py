"""Datasets of files on a disk: written in commits, read with exact types, refused with reasons."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from noetl_playbook.model import datasets
from noetl_worker.datasets import (
    address,
    column_filters,
    csv_rows,
    file_sink,
    read_plan,
    text_casts,
)
from noetl_worker.datasets.address import DatasetAddress, OpenStore
from noetl_worker.datasets.column_filters import ColumnFilter
from noetl_worker.datasets.commit_log import Commit, CommitLog, DataFile
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.file_rows import FileReader
from noetl_worker.datasets.file_sink import FileSink
from noetl_worker.datasets.file_writer import DatasetWriter
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.sink_report import SinkReport

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
ROWS = pa.table(
    {
        "id": pa.array([1, 2, 3], pa.int64()),
        "name": pa.array(["Ann", None, 'Zoë, "x"\nline'], pa.string()),
        "price": pa.array([Decimal("1.10"), Decimal("2.00"), None], pa.decimal128(9, 2)),
        "day": pa.array([dt.date(2026, 1, 1), dt.date(2026, 1, 1), dt.date(2026, 1, 2)]),
        "at": pa.array([NOW, NOW, NOW], pa.timestamp("us", "UTC")),
        "ok": pa.array([True, False, None]),
    }
)


def write(
    folder: Path,
    rows: pa.Table,
    *,
    key: str = "a",
    attempt: int = 1,
    commit: bool = True,
    **sink: Any,
) -> SinkReport | None:
    """Write rows into a folder as one task does."""
    wanted = datasets.parse_sink({"path": "x", **sink})
    target = FileSink(
        address.build_local_address(folder),
        wanted,
        None,
        identity=file_sink.build_commit_identity(key),
        attempt=f"{attempt:08x}",
        now=NOW,
    )
    earlier = target.find_earlier()
    if earlier is not None:
        return earlier
    target.check_schema(rows.schema)
    store = OpenStore(address.build_local_address(folder), None)
    writer = DatasetWriter(store, wanted, target.write_scope, rows.schema)
    for batch in rows.to_batches():
        writer.write_batch(batch)
    files = writer.finish_files()
    return target.commit_files(files, rows.schema) if commit else None


def read(path: Path | str, rejects: Rejects | None = None, **source: Any) -> pa.Table:
    """Read a source whole."""
    place = DatasetAddress(scheme="file", path=str(path))
    wanted = datasets.parse_source({"path": str(path).lstrip("/"), **source})
    plan = read_plan.build_read_plan(place, wanted, None)
    reader = FileReader(OpenStore(place, None), wanted, plan.format)
    schema = read_plan.decode_schema(plan.schema)
    batches = [
        batch
        for piece in plan.pieces
        for batch in reader.iterate_batches(piece, schema, rejects or Rejects())
    ]
    return pa.Table.from_batches(batches, schema=schema)


@pytest.mark.parametrize("format_", ["parquet", "orc", "arrow"])
def test_values_of_every_type_come_back(tmp_path: Path, format_: str) -> None:
    write(tmp_path / "d", ROWS, format=format_)
    assert read(tmp_path / "d").equals(ROWS)


@pytest.mark.parametrize("packed", [None, "gzip"])
def test_csv_comes_back_by_its_schema(tmp_path: Path, packed: str | None) -> None:
    write(tmp_path / "d", ROWS, format="csv", compression=packed)
    ddl = "id BIGINT, name STRING, price DECIMAL(9,2), day DATE, at TIMESTAMP, ok BOOLEAN"
    assert read(tmp_path / "d", schema=ddl).equals(ROWS)


def test_partitions_are_folders_and_their_columns_keep_their_types(tmp_path: Path) -> None:
    report = write(tmp_path / "d", ROWS, partition_by=["day"])
    assert report is not None
    assert (report.partition_count, report.row_count, report.version) == (2, 3, 1)
    assert (tmp_path / "d/day=2026-01-01").is_dir()
    assert (tmp_path / "d/_SUCCESS").exists()
    found = read(tmp_path / "d").sort_by("id")
    assert found.select(ROWS.column_names).equals(ROWS)
    only = read(tmp_path / "d/day=2026-01-02")
    assert only["id"].to_pylist() == [3]
    assert read(f"{tmp_path}/d/day=*-02")["id"].to_pylist() == [3]


def test_an_attempt_that_is_repeated_writes_once(tmp_path: Path) -> None:
    first = write(tmp_path / "d", ROWS, mode="append")
    again = write(tmp_path / "d", ROWS, mode="append", attempt=2)
    assert first is not None
    assert again is not None
    assert (again.is_repeated, again.row_count) == (True, 3)
    write(tmp_path / "d", ROWS, mode="append", key="b")
    assert read(tmp_path / "d").num_rows == 6


def test_files_of_an_attempt_that_died_are_never_read_and_are_removed(tmp_path: Path) -> None:
    write(tmp_path / "d", ROWS, commit=False, mode="append")
    with pytest.raises(DatasetProblem, match="no files"):
        read(tmp_path / "d")
    write(tmp_path / "d", ROWS, mode="append", attempt=2)
    assert read(tmp_path / "d").num_rows == 3
    assert len(list((tmp_path / "d").glob("part-*"))) == 1


def test_modes_say_what_becomes_of_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write(folder, ROWS, key="a", partition_by=["day"])
    with pytest.raises(DatasetProblem, match=r"holds data already .*choose output\.mode"):
        write(folder, ROWS, key="b", partition_by=["day"])
    write(folder, ROWS.slice(2), key="c", partition_by=["day"], mode="overwrite_partitions")
    assert sorted(read(folder)["id"].to_pylist()) == [1, 2, 3]
    write(folder, ROWS.slice(0, 1), key="d", partition_by=["day"], mode="overwrite_partitions")
    assert sorted(read(folder)["id"].to_pylist()) == [1, 3]
    write(folder, ROWS.slice(0, 2), key="e", mode="overwrite")
    assert sorted(read(folder)["id"].to_pylist()) == [1, 2]
    assert len(list(folder.rglob("*.parquet"))) == 1


def test_other_columns_and_folders_are_refused_when_appended(tmp_path: Path) -> None:
    write(tmp_path / "d", ROWS, key="a")
    texts = ROWS.set_column(0, "id", pa.array(["1", "2", "3"]))
    with pytest.raises(DatasetProblem, match="column 'id' is int64 there, and string"):
        write(tmp_path / "d", texts, key="b", mode="append")
    with pytest.raises(DatasetProblem, match="has folders by nothing, not by day"):
        write(tmp_path / "d", ROWS, key="c", mode="append", partition_by=["day"])


def test_files_are_cut_by_size(tmp_path: Path) -> None:
    values = np.random.default_rng(1).integers(0, 2**60, 1_000_000)
    rows = pa.table({"n": values})
    report = write(tmp_path / "d", rows, file_size="1MB", compression="none")
    assert report is not None
    assert report.file_count > 1
    assert read(tmp_path / "d").num_rows == 1_000_000


def test_csv_is_guessed_without_a_loss(tmp_path: Path) -> None:
    text = (
        "zip,version,big,n,day,when,flag,empty\n"
        '007,1.10,12345678901234567890,5,2026-01-31,2026-01-31 10:00:00,true,""\n'
        "12345,2.2,1,-6,2026-02-01,2026-02-01T00:00:00.5,false,\n"
    )
    (tmp_path / "a.csv").write_text(text)
    found = read(tmp_path / "a.csv")
    assert [str(field.type) for field in found.schema] == [
        "string",
        "decimal128(3, 2)",
        "decimal128(20, 0)",
        "int64",
        "date32[day]",
        "timestamp[us]",
        "bool",
        "string",
    ]
    assert found["zip"].to_pylist() == ["007", "12345"]
    assert found["empty"].to_pylist() == ["", None]
    as_text = read(tmp_path / "a.csv", schema="text")
    assert as_text["version"].to_pylist() == ["1.10", "2.2"]


def test_a_day_that_is_none_stays_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("day\n2026-02-30\n2026-02-01\n")
    assert read(tmp_path / "a.csv").schema.field("day").type == pa.string()


def test_a_row_that_does_not_fit_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,note\n1,"two\nlines"\n\nx,late\n3,fine\n')
    schema = "id BIGINT, note STRING"
    with pytest.raises(DatasetProblem, match=r"line 5 of .*a.csv, column 'id': 'x'"):
        read(tmp_path / "a.csv", schema=schema)
    (tmp_path / "a.csv").write_text('id,note\n1,"two\nlines"\n4,a,b\nx,late\n3,fine\n')
    rejects = Rejects()
    found = read(tmp_path / "a.csv", rejects, schema=schema, on_bad_row="divert")
    assert found["id"].to_pylist() == [1, 3]
    assert [(row.line, row.column, row.text) for row in rejects.rows] == [
        (4, None, "4,a,b"),
        (5, "id", "x"),
    ]


def test_quoted_line_feeds_are_values_at_any_size(tmp_path: Path) -> None:
    long = "x\n" * 3_000_000
    (tmp_path / "a.csv").write_text(f'id,note\n1,short\n2,"{long}"\n3,end\n')
    assert [len(text) for text in read(tmp_path / "a.csv")["note"].to_pylist()] == [5, 6_000_000, 3]


def test_csv_without_a_header_takes_the_names_of_its_schema(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1;a\n2;b\n")
    found = read(tmp_path / "a.csv", header=False, delimiter=";", schema="id INT, code STRING")
    assert found.to_pylist() == [{"id": 1, "code": "a"}, {"id": 2, "code": "b"}]


def test_other_encodings_are_read_and_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("name\nZoë\n".encode("latin-1"))
    assert read(tmp_path / "a.csv", encoding="latin-1")["name"].to_pylist() == ["Zoë"]
    with pytest.raises(DatasetProblem, match="is not utf-8: name its 'encoding'"):
        read(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ({"path": "a", "paht": "b"}, "'paht' is no key of a dataset: did you mean 'path'"),
        ({"path": "a", "delta": "b"}, "a dataset has one of"),
        ({"path": "ftp://x/y"}, "has the scheme 'ftp'"),
        ({"path": "a.parquet", "delimiter": ";"}, "'delimiter' is for csv"),
        ({"path": "a.csv", "delimiter": ";;"}, "delimiter is one ASCII character"),
        ({"path": "a.csv", "format": "cvs"}, "format is 'cvs': did you mean 'csv'"),
        ({"path": "a.csv", "on_bad_row": "drop"}, "use fail, skip or divert"),
    ],
)
def test_what_is_no_source_is_refused(source: dict[str, Any], said: str) -> None:
    with pytest.raises(datasets.DatasetInvalid, match=said.replace("(", r"\(")):
        datasets.parse_source(source)


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ({"path": "a", "mode": "upsert", "key": "id"}, "upsert is for iceberg and delta"),
        ({"path": "a", "mode": "overwrite_partitions"}, "needs 'partition_by'"),
        ({"path": "a", "file_size": "1KB"}, "from 1MB to 5GB"),
        ({"delta": "s3://b/t", "format": "csv"}, "leave 'format' out"),
    ],
)
def test_what_is_no_sink_is_refused(sink: dict[str, Any], said: str) -> None:
    with pytest.raises(datasets.DatasetInvalid, match=said):
        datasets.parse_sink(sink)


def test_an_empty_text_names_no_folder(tmp_path: Path) -> None:
    rows = pa.table({"k": ["a", ""], "n": [1, 2]})
    with pytest.raises(DatasetProblem, match="no folder tells from null"):
        write(tmp_path / "d", rows, partition_by=["k"])


def test_folder_values_with_signs_come_back(tmp_path: Path) -> None:
    rows = pa.table({"k": ["a/b=c", "é %", None], "n": [1, 2, 3]})
    write(tmp_path / "d", rows, partition_by=["k"])
    assert read(tmp_path / "d").sort_by("n")["k"].to_pylist() == ["a/b=c", "é %", None]


def test_lines_of_json_keep_texts_digits_and_late_columns(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text(
        '{"id": 1, "at": "2026-01-01", "in": {"t": "2026-01-01T00:00:00"}}\n'
        '{"id": 12345678901234567890123, "late": [1.5]}\n'
    )
    (tmp_path / "b.ndjson").write_text('{"id": 2, "more": true}\n')
    values = read(f"{tmp_path}/*.ndjson").to_pylist()
    assert values[0]["at"] == "2026-01-01"
    assert values[0]["in"] == {"t": "2026-01-01T00:00:00"}
    assert values[1]["id"] == 12345678901234567890123
    assert values[1]["late"] == [1.5]
    assert values[2]["more"] is True


def test_a_wrong_line_of_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text('{"id": 1}\n{"id": 2}\n{"id": 3\n')
    with pytest.raises(DatasetProblem, match=r"line 3 of .*a\.ndjson"):
        read(tmp_path / "a.ndjson")


def test_files_of_avro_are_read(tmp_path: Path) -> None:
    schema = {
        "type": "record",
        "name": "row",
        "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"]}],
    }
    rows = [{"id": 1, "name": "a"}, {"id": 2, "name": None}]
    with (tmp_path / "a.avro").open("wb") as file:
        fastavro.writer(file, schema, rows)
    assert read(tmp_path / "a.avro").to_pylist() == rows


def test_a_run_that_goes_on_beside_its_successor_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    sink = datasets.parse_sink({"path": "x", "mode": "append"})
    late = FileSink(
        address.build_local_address(folder),
        sink,
        None,
        identity=file_sink.build_commit_identity("a"),
        attempt="0000000f",
        now=NOW,
    )
    assert late.find_earlier() is None
    store = OpenStore(address.build_local_address(folder), None)
    writer = DatasetWriter(store, sink, late.write_scope, ROWS.schema)
    writer.write_batch(ROWS.to_batches()[0])
    files = writer.finish_files()
    write(folder, ROWS.slice(0, 2), mode="append", attempt=2)
    assert late.commit_files(files, ROWS.schema).row_count == 2
    assert read(folder)["id"].to_pylist() == [1, 2]
    assert len(list(folder.glob("part-*"))) == 1


def test_files_that_are_gone_are_not_committed(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write(folder, ROWS, mode="append", commit=False)
    (part,) = folder.glob("part-*")
    log = CommitLog(OpenStore(address.build_local_address(folder), None), str(folder))
    files = [DataFile(path=part.name, size_bytes=1), DataFile(path="part-x.parquet", size_bytes=1)]
    with pytest.raises(DatasetProblem, match="was removed before its commit"):
        log.append_commit(Commit(identity="b" * 32, mode="append", added=files, schema=""))


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("12.5", True),
        ("-0012.50", True),
        (".5", True),
        ("5.", True),
        ("9" * 37, True),
        ("12.55", False),
        ("9" * 38, False),
        # Arrow makes 1 of it.
        ("340282366920938463463374607431768211457", False),
        ("1" + "0" * 60, False),
        ("1e3", False),
        ("", False),
    ],
)
def test_a_decimal_holds_a_number_whole_or_not_at_all(text: str, *, fits: bool) -> None:
    values, unfit = text_casts.cast_texts(pa.array([text, None, "1"]), pa.decimal128(38, 1))
    assert unfit == ([] if fits else [0])
    assert values[0].as_py() == (Decimal(text) if fits else None)
    assert values.to_pylist()[1:] == [None, Decimal("1.0")]


def test_a_schema_has_no_constraints(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id\n1\n")
    with pytest.raises(DatasetProblem, match="column 'id' has a constraint"):
        read(tmp_path / "a.csv", schema="id BIGINT NOT NULL")


def test_a_column_of_the_schema_that_no_file_has_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "d", ROWS)
    with pytest.raises(DatasetProblem, match="have no column 'idd' of the schema"):
        read(tmp_path / "d", schema="idd BIGINT")


def test_files_of_other_writers_come_and_go(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    pyarrow.parquet.write_table(ROWS, folder / "theirs.parquet")
    write(folder, ROWS, mode="append")
    assert read(folder).num_rows == 6
    (folder / "theirs.parquet").unlink()
    assert read(folder).num_rows == 3


def test_filters_leave_out_only_what_spark_leaves_out_too() -> None:
    schema = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("t", pa.string())])
    above = [ColumnFilter(column=name, sign=">", value=5) for name in ("n", "x", "t")]
    # NaN is greater than 5 in Spark, and not in Arrow.
    assert column_filters.build_expression(above[1:], schema, schema) is None
    assert str(column_filters.build_expression(above, schema, schema)) == "(n > 5)"
    read_as_text = pa.schema([("n", pa.string())])
    assert column_filters.build_expression(above, schema, read_as_text) is None


def test_lines_of_many_rejects_take_one_more_pass_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,n\n" + "".join(f"{i},x\n1,2,3\n" for i in range(40)))
    opened: list[int] = []

    def open_file() -> pa.NativeFile:
        opened.append(1)
        return pa.OSFile(str(path))

    file = csv_rows.CsvFile(
        shown_path="a.csv", open_file=open_file, options=datasets.CsvOptions(), on_bad_row="divert"
    )
    rejects = Rejects()
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    assert (
        sum(
            len(typed_batch)
            for typed_batch in csv_rows.iterate_typed_batches(file, schema, rejects)
        )
        == 0
    )
    assert sorted(row.line for row in rejects.rows) == list(range(2, 82))
    # The header twice, the rows, and the lines of both kinds of rejects.
    assert len(opened) == 5


def test_files_are_shown_as_the_playbook_names_them(tmp_path: Path) -> None:
    folder = tmp_path / "of=one/checkout"
    (folder / "data").mkdir(parents=True)
    (folder / "data/a.csv").write_text("id\nx\n")
    place = address.build_local_address(folder / "data/a.csv", "data/a.csv")
    assert place.root_path == str(folder / "data/a.csv")
    source = datasets.parse_source({"path": "data/a.csv", "schema": "id INT"})
    plan = read_plan.build_read_plan(place, source, None)
    reader = FileReader(OpenStore(place, None), source, plan.format)
    schema = read_plan.decode_schema(plan.schema)
    assert schema.names == ["id"]
    with pytest.raises(DatasetProblem, match=r"^line 2 of data/a\.csv, column 'id': 'x'"):
        list(reader.iterate_batches(plan.pieces[0], schema, Rejects()))


def test_rows_that_do_not_fit_are_told_apart_where_most_do_not(tmp_path: Path) -> None:
    lines = ["99999999999999999999,1", "x,2", "3,y", "4,0.125", "5,6", "0x10,7", ",8", "9,1e2"]
    many = [f"{number},{number}.125" for number in range(20_000)]
    (tmp_path / "a.csv").write_text("\n".join(["id,p", *lines, *many, ""]))
    source: dict[str, Any] = {"schema": "id BIGINT, p DECIMAL(12,2)"}
    rejects = Rejects()
    casts = 0
    cast = text_casts._cast_whole

    def count_casts(texts: pa.Array, kind: pa.DataType) -> pa.Array:
        nonlocal casts
        casts += 1
        return cast(texts, kind)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(text_casts, "_cast_whole", count_casts)
        found = read(tmp_path / "a.csv", rejects, **source, on_bad_row="divert")
        assert found.to_pydict() == {"id": [5, 16, None], "p": [Decimal(6), Decimal(7), Decimal(8)]}
        assert (rejects.count, casts < 200) == (20_005, True)
        assert [(row.line, row.column, row.text) for row in rejects.rows[:4]] == [
            (2, "id", "99999999999999999999"),
            (3, "id", "x"),
            (4, "p", "y"),
            (5, "p", "0.125"),
        ]
        casts = 0
        with pytest.raises(DatasetProblem, match=r"line 2 of .*, column 'id': '9999"):
            read(tmp_path / "a.csv", **source)
        assert casts < 200


def test_filters_go_with_columns_of_views(tmp_path: Path) -> None:
    # As writers in Rust make them.
    rows = pa.table(
        {
            "id": pa.array(range(100), pa.int64()),
            "name": pa.array([f"n{number}" for number in range(100)], pa.string_view()),
        }
    )
    pa.parquet.write_table(rows, tmp_path / "a.parquet", row_group_size=10)
    place = DatasetAddress(scheme="file", path=f"{tmp_path}/a.parquet")
    source = datasets.parse_source({"path": "a.parquet"})
    plan = read_plan.build_read_plan(place, source, None)
    reader = FileReader(OpenStore(place, None), source, plan.format)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    filters = [ColumnFilter(column="id", sign=">", value=95)]
    batches = list(reader.iterate_batches(plan.pieces[0], schema, Rejects(), filters=filters))
    found = pa.Table.from_batches(batches, schema)
    # Row groups are left out, the rows of the last one are Spark's to filter.
    assert found["id"].to_pylist() == list(range(90, 100))
    assert found["name"][0].as_py() == "n90"


@pytest.mark.parametrize("format_", ["parquet", "orc", "arrow", "csv"])
def test_an_append_fits_the_files_of_other_writers(tmp_path: Path, format_: str) -> None:
    write(tmp_path / "other", ROWS, format=format_, partition_by=["day"])
    (foreign, *_) = sorted((tmp_path / "other").glob("day=*/*"))
    folder = tmp_path / "d" / "day=2026-01-01"
    folder.mkdir(parents=True)
    # As another writer would name it: it is in no commit.
    foreign.rename(folder / f"rows{''.join(foreign.suffixes[-1:])}")
    sink: dict[str, Any] = {"format": format_, "mode": "append", "partition_by": ["day"]}
    for rows, column in ((ROWS.drop(["ok"]), "ok"), (ROWS.rename_columns([*"abcefg"]), "id")):
        with pytest.raises(DatasetProblem, match=f"rows.*column '{column}' is .* there"):
            write(tmp_path / "d", rows, **{**sink, "partition_by": []})
    report = write(tmp_path / "d", ROWS, **sink)
    assert report is not None
    assert report.row_count == 3


def test_types_of_an_append_are_those_of_files_of_other_writers(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    pa.parquet.write_table(pa.table({"id": pa.array([1], pa.int32())}), folder / "a.parquet")
    with pytest.raises(DatasetProblem, match=r"'id' is int32 there, and int64 .* CAST"):
        write(folder, pa.table({"id": [1]}), mode="append")
    write(folder, pa.table({"id": pa.array([2], pa.int32())}), mode="append")
    assert read(folder)["id"].to_pylist() == [1, 2]
