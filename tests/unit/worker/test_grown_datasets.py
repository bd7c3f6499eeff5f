"""Folders of files that are given the columns of later rows, where the check says `evolve`."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

from noetl_playbook.model import datasets
from noetl_worker.datasets import address, file_sink, plan_scan, read_plan
from noetl_worker.datasets.address import DatasetAddress
from noetl_worker.datasets.batch_sink import BatchSink, SinkPlan
from noetl_worker.datasets.commit_log import CommitLog
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.plan_scan import PlannedSource
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.sink_report import SinkReport

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
NEVER_NULL = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.string(), nullable=False)]
)
PLAIN = pa.table({"id": [1, 2], "day": ["a", "b"]}, schema=NEVER_NULL)
NOTED = pa.table({"id": [3], "note": ["late"], "day": ["a"]})
LESS = pa.table({"id": [4], "day": ["b"]})
WHOLE = [
    {"id": 1, "note": None, "day": "a"},
    {"id": 2, "note": None, "day": "b"},
    {"id": 3, "note": "late", "day": "a"},
    {"id": 4, "note": None, "day": "b"},
]
FORMATS = ["parquet", "orc", "arrow", "ndjson", "csv"]


def open_task(folder: Path, key: str, *, drift: str = "evolve", **sink: Any) -> BatchSink:
    """Open what one task writes with; by default it adds its rows, and its columns."""
    schema = {"columns": "id BIGINT, day STRING", "drift": drift}
    fields = {"path": "x", "mode": "append", "expect": {"schema": schema}, **sink}
    return BatchSink(
        SinkPlan(
            address=address.build_local_address(folder),
            sink=datasets.parse_sink(fields),
            identity=file_sink.build_commit_identity(key),
            attempt="0000000a",
            now=NOW,
        )
    )


def fill(task: BatchSink, rows: pa.Table) -> Callable[[], SinkReport]:
    """Write the rows of a task; return what commits them."""
    assert task.find_earlier() is None
    task.set_schema(rows.schema)
    for batch in rows.to_batches():
        task.write_batch(batch)
    return task.commit_rows


def write_all(folder: Path, **sink: Any) -> list[list[str]]:
    """Write three tasks' rows; return the columns that each has brought."""
    tables = (PLAIN, NOTED, LESS)
    reports = [
        fill(open_task(folder, str(number), **sink), rows)() for number, rows in enumerate(tables)
    ]
    return [report.added_columns for report in reports]


def read(path: Path | str, condition: Any = None, **source: Any) -> list[dict[str, Any]]:
    """Read a source whole, in the order of its `id`."""
    place = DatasetAddress(scheme="file", path=str(path))
    plan = read_plan.build_read_plan(
        place, datasets.parse_source({"path": str(path).lstrip("/"), **source}), None
    )
    planned = PlannedSource(plan=plan)
    batches = list(plan_scan.iterate_source(planned, Rejects(), condition=condition))
    rows = pa.Table.from_batches(batches, schema=planned.schema)
    rows.validate(full=True)
    found: list[dict[str, Any]] = rows.to_pylist()
    return sorted(found, key=lambda row: str(row.get("id")))


@pytest.mark.parametrize("partition_by", [[], ["day"]])
@pytest.mark.parametrize("format_", FORMATS)
def test_a_folder_whose_later_files_have_more_columns_reads_whole(
    tmp_path: Path, format_: str, partition_by: list[str]
) -> None:
    folder = tmp_path / "d"
    added_columns = write_all(folder, format=format_, partition_by=partition_by)
    assert added_columns == [[], ["note STRING"], []]
    assert read(folder) == WHOLE
    notes = [row["note"] for row in read(folder, columns=["note"])]
    assert sorted(notes, key=str) == [None, None, None, "late"]
    ddl = "id BIGINT, note STRING, day STRING"
    assert read(folder, schema=ddl) == WHOLE
    if format_ != "ndjson":
        with pytest.raises(DatasetProblem, match="the files have no column 'nope' of the schema"):
            read(folder, schema=f"{ddl}, nope STRING")


def test_filters_on_a_column_that_files_lack_lose_no_row(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    write_all(folder)
    late = read(folder, pc.field("note") == "late")
    assert [row for row in late if row["note"] == "late"] == [WHOLE[2]]
    without = read(folder, pc.field("note").is_null())
    assert [row for row in without if row["note"] is None] == [WHOLE[0], WHOLE[1], WHOLE[3]]


@pytest.mark.parametrize("partition_by", [[], ["day"]])
def test_other_readers_find_the_columns_by_their_names(
    tmp_path: Path, partition_by: list[str]
) -> None:
    folder = tmp_path / "d"
    write_all(folder, partition_by=partition_by)
    query = "SELECT id, note, day FROM read_parquet($1, union_by_name = true) ORDER BY id"
    with duckdb.connect() as connection:
        rows = connection.execute(query, [f"{folder}/**/*.parquet"]).fetchall()
    assert rows == [(row["id"], row["note"], row["day"]) for row in WHOLE]


def test_a_column_that_some_files_lack_may_be_null(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    fill(open_task(folder, "0"), PLAIN)()
    fill(open_task(folder, "1"), NOTED)()
    state = CommitLog(
        address.OpenStore(address.build_local_address(folder), None), str(folder)
    ).read_state()
    assert state is not None
    assert state.schema is not None
    fields = list(read_plan.decode_schema(state.schema))
    assert [(field.name, field.nullable) for field in fields] == [
        ("id", True),
        ("day", True),
        ("note", True),
    ]


def test_an_attempt_that_is_repeated_tells_its_columns_again(tmp_path: Path) -> None:
    write_all(tmp_path / "d")
    report = open_task(tmp_path / "d", "1").find_earlier()
    assert report is not None
    assert (report.is_repeated, report.added_columns) == (True, ["note STRING"])


def test_other_types_are_refused_and_columns_without_evolve_too(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    fill(open_task(folder, "0"), PLAIN)()
    texts = pa.table({"id": ["3"], "note": ["late"], "day": ["a"]})
    with pytest.raises(DatasetProblem, match=r"d: column 'id' is int64 .* under another name"):
        fill(open_task(folder, "1"), texts)
    with pytest.raises(DatasetProblem, match="column 'note' is absent there"):
        fill(open_task(folder, "2", drift="fail"), NOTED)
    assert len(read(folder)) == PLAIN.num_rows


def test_tasks_that_write_at_once_keep_each_others_columns(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    fill(open_task(folder, "0"), PLAIN)()
    commit_notes = fill(open_task(folder, "1"), NOTED)
    commit_sizes = fill(open_task(folder, "2"), pa.table({"id": [4], "size": [9], "day": ["b"]}))
    commit_others = fill(open_task(folder, "3"), pa.table({"id": [5], "note": [7], "day": ["b"]}))
    assert commit_notes().added_columns == ["note STRING"]
    assert commit_sizes().added_columns == ["size BIGINT"]
    with pytest.raises(DatasetProblem, match=r"column 'note' is string there, and int64"):
        commit_others()
    assert [(row["id"], row["note"], row["size"]) for row in read(folder)] == [
        (1, None, None),
        (2, None, None),
        (3, "late", None),
        (4, None, 9),
    ]


def test_partitions_are_overwritten_with_more_columns_and_a_new_folder_has_its_own(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "d"
    fill(open_task(folder, "0", partition_by=["day"]), PLAIN)()
    replacing = {"partition_by": ["day"], "mode": "overwrite_partitions"}
    assert fill(open_task(folder, "1", **replacing), NOTED)().added_columns == ["note STRING"]
    assert read(folder) == [WHOLE[1], WHOLE[2]]
    fill(open_task(folder, "2", mode="overwrite"), LESS)()
    assert read(folder) == LESS.to_pylist()


def test_files_that_no_task_has_written_are_given_no_columns(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    pyarrow.parquet.write_table(NOTED, folder / "theirs.parquet")
    with pytest.raises(DatasetProblem, match=r"theirs.parquet was not written by a task.*anew"):
        fill(open_task(folder, "0"), PLAIN)
    assert read(folder) == NOTED.to_pylist()


def test_csv_without_a_header_cannot_grow() -> None:
    schema = {"columns": "id BIGINT", "drift": "evolve"}
    sink = {"path": "x", "format": "csv", "header": False, "expect": {"schema": schema}}
    with pytest.raises(datasets.DatasetInvalid, match="leave 'header' out, or write parquet"):
        datasets.parse_sink(sink)
    assert datasets.parse_sink({**sink, "header": True}).may_grow


def test_csv_files_of_other_writers_are_merged_where_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,n\n1,7\n")
    (tmp_path / "b.csv").write_text("id,note\n2,x\n")
    merged = [{"id": 1, "n": 7, "note": None}, {"id": 2, "n": None, "note": "x"}]
    assert read(f"{tmp_path}/*.csv", merge_schema=True) == merged
    texts = [{"id": "1", "n": "7", "note": None}, {"id": "2", "n": None, "note": "x"}]
    assert read(f"{tmp_path}/*.csv", merge_schema=True, schema="text") == texts
    with pytest.raises(DatasetProblem, match=r"a.csv has no column 'note' .* merge_schema: true"):
        read(f"{tmp_path}/*.csv")
