"""Columns that rows bring to Delta and Iceberg tables whose check of the schema says `evolve`."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from noetl_playbook.model.datasets import DatasetSink, LakeTable
from noetl_playbook.model.expectations import parse_expectations
from noetl_worker.datasets import iceberg_table
from noetl_worker.datasets.address import build_local_address
from noetl_worker.datasets.batch_sink import BatchSink, SinkPlan
from noetl_worker.datasets.problems import DatasetProblem
from noetl_worker.datasets.sink_report import SinkReport

PLAN = Callable[..., SinkPlan]
PLAIN = pa.table({"id": [1, 2], "amount": [10, 20]})
NOTED = pa.table({"id": [3], "amount": [30], "note": ["late"]})


@pytest.fixture(params=["delta", "iceberg"])
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> PLAN:
    """Plans of commits into one table of each kind."""
    lake = tmp_path / "lake"
    lake.mkdir()
    catalog = None
    places: dict[str, Any] = {"delta": str(lake)}
    if request.param == "iceberg":
        catalog = {"dsn": request.getfixturevalue("database")}
        table = LakeTable(name="shop.sales", catalog="pg", warehouse=str(lake))
        places = {"iceberg": table}

    def build_plan(
        commit: str, mode: str = "append", drift: str = "evolve", **fields: Any
    ) -> SinkPlan:
        schema = {"columns": "id BIGINT, amount BIGINT", "drift": drift}
        return SinkPlan(
            address=build_local_address(lake),
            sink=DatasetSink(
                **places, mode=mode, expect=parse_expectations({"schema": schema}), **fields
            ),
            identity=commit * 32,
            attempt="aaaaaaaa",
            now=datetime.now(UTC),
            catalog=catalog,
        )

    return build_plan


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


def read_rows(plan: SinkPlan) -> list[dict[str, Any]]:
    if plan.sink.delta is not None:
        rows = pa.table(deltalake.DeltaTable(plan.sink.delta).to_pyarrow_table())
    else:
        catalog = iceberg_table.open_catalog(plan.address, None, plan.catalog or {})
        rows = catalog.load_table("shop.sales").scan().to_arrow()
    found: list[dict[str, Any]] = rows.to_pylist()
    return sorted(found, key=lambda row: row["id"])


def test_a_table_is_given_the_columns_that_rows_bring(plan: PLAN) -> None:
    assert write(plan("0", "error"), PLAIN).added_columns == []
    assert write(plan("1"), NOTED).added_columns == ["note STRING"]
    # Rows that lack what others have brought go on.
    assert write(plan("2"), pa.table({"id": [4], "amount": [40]})).added_columns == []
    assert read_rows(plan("3")) == [
        {"id": 1, "amount": 10, "note": None},
        {"id": 2, "amount": 20, "note": None},
        {"id": 3, "amount": 30, "note": "late"},
        {"id": 4, "amount": 40, "note": None},
    ]
    again = write(plan("1"), NOTED)
    assert (again.is_repeated, again.added_columns) == (True, ["note STRING"])


def test_an_upsert_brings_columns_and_may_lack_none(plan: PLAN) -> None:
    write(plan("0", "error"), PLAIN)
    rows = pa.table({"id": [2, 3], "amount": [21, 30], "note": ["changed", "new"]})
    report = write(plan("1", "upsert", key=("id",)), rows)
    assert report.added_columns == ["note STRING"]
    assert read_rows(plan("3")) == [
        {"id": 1, "amount": 10, "note": None},
        {"id": 2, "amount": 21, "note": "changed"},
        {"id": 3, "amount": 30, "note": "new"},
    ]
    with pytest.raises(DatasetProblem, match=r"'note' is absent .* NULL AS note"):
        write(plan("2", "upsert", key=("id",)), PLAIN)


def test_other_types_are_refused_and_columns_without_evolve_too(plan: PLAN) -> None:
    write(plan("0", "error"), PLAIN)
    texts = pa.table({"id": [3], "amount": ["30"], "note": ["late"]})
    with pytest.raises(DatasetProblem, match=r"column 'amount' is .* write it under another name"):
        write(plan("1"), texts)
    with pytest.raises(DatasetProblem, match="column 'note' is absent there"):
        write(plan("2", drift="fail"), NOTED)
    assert read_rows(plan("3")) == PLAIN.to_pylist()


# Iceberg has one commit for both.
@pytest.mark.parametrize("plan", ["delta"], indirect=True)
def test_an_attempt_that_died_between_columns_and_rows_is_told_with_its_columns(
    plan: PLAN, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(plan("0", "error"), PLAIN)

    def die(*_: Any, **__: Any) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(deltalake.DeltaTable, "create_write_transaction", die)
        with pytest.raises(OSError, match="killed"):
            write(plan("1"), NOTED)
    assert write(plan("1"), NOTED).added_columns == ["note STRING"]
    assert [row["note"] for row in read_rows(plan("2"))] == [None, None, "late"]
