"""Commits of Delta and Iceberg tables: what an upsert replaces, and what dead attempts leave."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute
import pytest
from msgspec import structs

from noetl_playbook.model.datasets import DatasetSink, LakeTable
from noetl_worker.datasets import batch_sink, iceberg_table
from noetl_worker.datasets.address import OpenStore, build_local_address
from noetl_worker.datasets.batch_sink import BatchSink, SinkPlan
from noetl_worker.datasets.file_writer import DatasetWriter
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.sink_report import SinkReport

FIRST, DEAD, SECOND = "aaaaaaaa", "dddddddd", "bbbbbbbb"
PLAN = Callable[..., SinkPlan]


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    folder = tmp_path / "lake"
    folder.mkdir()
    return folder


@pytest.fixture
def iceberg(lake: Path, database: str) -> PLAN:
    """Plans of commits into one Iceberg table."""
    address = build_local_address(lake)

    def plan(mode: str, *, commit: str, attempt: str = FIRST, **fields: Any) -> SinkPlan:
        table = LakeTable(name="shop.sales", catalog="pg", warehouse=str(lake))
        return SinkPlan(
            address=address,
            sink=DatasetSink(iceberg=table, mode=mode, **fields),
            identity=commit * 32,
            attempt=attempt,
            now=datetime.now(UTC),
            catalog={"dsn": database},
        )

    return plan


@pytest.fixture
def delta(lake: Path) -> PLAN:
    """Plans of commits into one Delta table."""

    def plan(mode: str, *, commit: str, attempt: str = FIRST, **fields: Any) -> SinkPlan:
        return SinkPlan(
            address=build_local_address(lake),
            sink=DatasetSink(delta=str(lake), mode=mode, **fields),
            identity=commit * 32,
            attempt=attempt,
            now=datetime.now(UTC),
        )

    return plan


def write(plan: SinkPlan, rows: pa.Table) -> SinkReport:
    """Commit rows, as a task does that runs in the worker."""
    sink = BatchSink(plan)
    earlier = sink.find_earlier()
    if earlier is not None:
        return earlier
    sink.set_schema(rows.schema)
    for batch in rows.to_batches():
        sink.write_batch(batch)
    return sink.commit_rows()


def die_before_commit(plan: SinkPlan, rows: pa.Table) -> None:
    """Write the files of an attempt that commits nothing."""
    target = batch_sink.open_sink(plan)
    layout = structs.replace(plan.sink, partition_by=target.partition_by)
    store = OpenStore(plan.address, plan.account)
    writer = DatasetWriter(store, layout, target.write_scope, rows.schema)
    for batch in rows.to_batches():
        writer.write_batch(batch)
    assert writer.finish_files()


def sales(ids: range, amount: int) -> pa.Table:
    numbers = list(ids)
    shops = [f"shop {number % 3}" for number in numbers]
    return pa.table({"id": numbers, "shop": shops, "amount": [amount] * len(numbers)})


def read_iceberg(plan: SinkPlan, **selection: Any) -> list[tuple[Any, ...]]:
    catalog = iceberg_table.open_catalog(plan.address, None, plan.catalog or {})
    rows = catalog.load_table("shop.sales").scan(**selection).to_arrow()
    return sorted(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))


def as_rows(*tables: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())


def list_files(lake: Path, word: str) -> list[str]:
    return sorted(path.name for path in lake.rglob("*.parquet") if word in path.name)


@pytest.mark.parametrize("folders", [(), ("shop",)], ids=["whole", "partitioned"])
def test_an_upsert_replaces_the_rows_of_its_keys_and_no_others(
    iceberg: PLAN, folders: tuple[str, ...]
) -> None:
    for start in (0, 1_000, 2_000):
        rows = sales(range(start, start + 1_000), 1)
        mode = "append" if start else "error"
        write(iceberg(mode, commit=f"{start // 1_000}", partition_by=folders), rows)
    upsert = iceberg("upsert", commit="e", key=("id",))
    report = write(upsert, sales(range(900, 1_100), 2))
    untouched = [sales(range(900), 1), sales(range(1_100, 3_000), 1)]
    assert read_iceberg(upsert) == as_rows(*untouched, sales(range(900, 1_100), 2))
    before = {
        snapshot.sequence_number: snapshot.snapshot_id
        for snapshot in iceberg_table.open_catalog(upsert.address, None, upsert.catalog or {})
        .load_table("shop.sales")
        .snapshots()
    }
    earlier = read_iceberg(upsert, snapshot_id=before[report.version - 1])
    assert earlier == as_rows(sales(range(3_000), 1))


def test_an_upsert_leaves_files_alone_that_hold_none_of_its_keys(iceberg: PLAN, lake: Path) -> None:
    write(iceberg("error", commit="0"), sales(range(100), 1))
    before = list_files(lake, FIRST)
    upsert = iceberg("upsert", commit="1", attempt=SECOND, key=("id",))
    write(upsert, sales(range(500, 600), 2))
    assert len(list_files(lake, SECOND)) == 1, "no copy was written"
    assert list_files(lake, FIRST) == before
    assert read_iceberg(upsert) == as_rows(sales(range(100), 1), sales(range(500, 600), 2))


def test_an_upsert_holds_keys_of_several_columns_together(iceberg: PLAN) -> None:
    rows = pa.table({"a": [1, 1, 2, 2], "b": ["x", "y", "x", None], "n": [0, 0, 0, 0]})
    write(iceberg("error", commit="0"), rows)
    upsert = iceberg("upsert", commit="1", key=("a", "b"))
    write(upsert, pa.table({"a": [1, 2], "b": ["y", "z"], "n": [1, 1]}))
    catalog = iceberg_table.open_catalog(upsert.address, None, upsert.catalog or {})
    found = catalog.load_table("shop.sales").scan().to_arrow().to_pylist()
    assert sorted((row["a"], str(row["b"]), row["n"]) for row in found) == [
        *((1, "x", 0), (1, "y", 1)),
        *((2, "None", 0), (2, "x", 0), (2, "z", 1)),
    ]


def test_an_upsert_of_no_rows_is_made_once(iceberg: PLAN) -> None:
    write(iceberg("error", commit="0"), sales(range(10), 1))
    upsert = iceberg("upsert", commit="1", key=("id",))
    reports = [write(upsert, sales(range(1), 2)[:0]) for _ in range(2)]
    assert [(report.row_count, report.is_repeated) for report in reports] == [(0, False), (0, True)]
    assert read_iceberg(upsert) == as_rows(sales(range(10), 1))


def test_an_upsert_of_rows_with_one_key_changes_nothing(iceberg: PLAN) -> None:
    write(iceberg("error", commit="0"), sales(range(10), 1))
    upsert = iceberg("upsert", commit="1", key=("id",))
    twice = pa.concat_tables([sales(range(2), 2), sales(range(1), 2)])
    with pytest.raises(DatasetProblem, match="1 keys are in several rows"):
        write(upsert, twice)
    with pytest.raises(DatasetProblem, match="names 'nope', which is no column"):
        write(iceberg("upsert", commit="2", key=("nope",)), sales(range(2), 2))
    assert read_iceberg(upsert) == as_rows(sales(range(10), 1))


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_a_commit_removes_what_dead_attempts_have_written(
    kind: str, mode: str, request: pytest.FixtureRequest, lake: Path
) -> None:
    plan: PLAN = request.getfixturevalue(kind)
    fields = {"key": ("id",)} if mode == "upsert" else {}
    write(plan("error", commit="0"), sales(range(100), 1))
    die_before_commit(plan(mode, commit="1", attempt=DEAD, **fields), sales(range(50, 60), 2))
    die_before_commit(plan(mode, commit="2", attempt=DEAD, **fields), sales(range(70, 80), 2))
    assert len(list_files(lake, DEAD)) == 2
    write(plan(mode, commit="1", attempt=SECOND, **fields), sales(range(50, 60), 2))
    left = list_files(lake, DEAD)
    assert [name for name in left if "-2222" in name] == left, "a task that has not committed"
    # A late attempt of a task that has committed leaves nothing either.
    die_before_commit(plan(mode, commit="1", attempt=DEAD, **fields), sales(range(50, 60), 2))
    assert write(plan(mode, commit="1", attempt=FIRST, **fields), sales(range(1), 3)).is_repeated
    assert list_files(lake, DEAD) == left
    found = count_rows(plan(mode, commit="1"))
    assert found == {"append": 110, "overwrite": 10, "upsert": 100}[mode]


def count_rows(plan: SinkPlan) -> int:
    if plan.sink.delta is not None:
        return len(pa.table(deltalake.DeltaTable(plan.sink.delta).to_pyarrow_table()))
    return len(read_iceberg(plan))


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_writers_at_once_remove_none_of_each_others_files(
    request: pytest.FixtureRequest, kind: str
) -> None:
    plan: PLAN = request.getfixturevalue(kind)
    write(plan("append", commit="0"), pa.table({"id": [0]}))
    commits = "123456789abc"

    def append(commit: str) -> SinkReport:
        return write(plan("append", commit=commit), pa.table({"id": [int(commit, 16)]}))

    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(append, commits))
    assert [report.row_count for report in reports] == [1] * len(commits)
    assert count_rows(plan("append", commit="0")) == 1 + len(commits)
    # Another attempt finds its commit, and removes none of its files.
    assert append("1").is_repeated
    assert count_rows(plan("append", commit="0")) == 1 + len(commits)
