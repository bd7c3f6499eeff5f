"""The rows that batches of a stream leave out: counted once, over every attempt, and bounded."""

from pathlib import Path
from typing import Any

import pytest
from tests.support.working import EXECUTION, ORGANIZATION, TENANT

from noetl_contracts import codec
from noetl_playbook.model.datasets import BadRow, DatasetSource
from noetl_playbook.model.streams import StreamOptions
from noetl_worker.datasets import address
from noetl_worker.datasets.csv_rows import REJECTS_SHOWN_MAX
from noetl_worker.spark.streams import stream_rejects
from noetl_worker.spark.streams.stream_rejects import StreamRejects
from noetl_worker.spark.tables import store_access
from noetl_worker.spark.tables.file_source import ReportedRejects
from noetl_worker.spark.tables.store_access import SparkRefusal, StoreAddress
from noetl_worker.spark.tables.stream_plans import StreamPlan

OWNER: dict[str, Any] = {"tenant_id": TENANT, "organization_id": ORGANIZATION}


@pytest.fixture
def home(tmp_path: Path) -> StoreAddress:
    return StoreAddress(url=f"file://{tmp_path}/payloads", **OWNER)


def open_attempt(home: StoreAddress, folder: Path, on_bad_row: BadRow = "divert") -> StreamRejects:
    """What one attempt of the stream counts with, as it begins."""
    rejects = StreamRejects(
        StreamPlan(
            options=StreamOptions(checkpoint="orders"),
            name="o",
            home=home,
            address=address.build_local_address(folder, "in"),
            source=DatasetSource(path="noetl://files/in/", format="csv", on_bad_row=on_bad_row),
            rejects="rejects/1/orders/d",
            execution_id=EXECUTION,
            is_near=True,
        )
    )
    rejects.restore()
    return rejects


def leave_out(home: StoreAddress, rejects: StreamRejects, step: int, *counts: int) -> None:
    """Tell of so many rows, as each task of a batch does."""
    for task, count in enumerate(counts):
        shown = range(min(count, REJECTS_SHOWN_MAX))
        rows = [
            {"file": f"{step}.csv", "line": line, "column": "n", "text": "x", "reason": "is no int"}
            for line in shown
        ]
        data = codec.encode_json(ReportedRejects(count=count, rows=rows))
        name = f"{stream_rejects.build_batch_prefix(rejects.tasks_prefix, step)}/{task}"
        store_access.run_with_store(
            home, lambda store, name=name, data=data: store.put_named(name, data, **OWNER)
        )


def test_batches_are_added_once_however_often_they_run(home: StoreAddress, tmp_path: Path) -> None:
    first = open_attempt(home, tmp_path)
    leave_out(home, first, 1, 2, 3)
    first.take_batch(1)
    first.take_batch(1)
    # It ended before the second batch was added; the next one cuts it into other tasks.
    leave_out(home, first, 2, 4, 4)
    second = open_attempt(home, tmp_path)
    leave_out(home, second, 2, 8)
    second.take_batch(1)
    second.take_batch(2)
    third = open_attempt(home, tmp_path)
    for attempt in (second, third):
        assert attempt.found.count == 13
        assert len(attempt.found.rows) == 13
    assert [row["file"] for row in third.found.rows] == ["1.csv"] * 5 + ["2.csv"] * 8


def test_more_rows_than_a_result_holds_end_the_run_and_name_one(
    home: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_rejects, "DIVERTED_ROWS_MAX", 5)
    rejects = open_attempt(home, tmp_path)
    leave_out(home, rejects, 1, 5)
    rejects.take_batch(1)
    leave_out(home, rejects, 2, 1)
    with pytest.raises(
        SparkRefusal, match=r"6 rows of this run do not fit.*line 0 of 2.csv"
    ) as told:
        rejects.take_batch(2)
    refusal = store_access.find_refusal(str(told.value))
    assert refusal is not None
    assert refusal["kind"] == "limit"
    # Another attempt finds the same.
    with pytest.raises(SparkRefusal, match="on_bad_row: skip"):
        open_attempt(home, tmp_path)


def test_rows_that_are_skipped_are_counted_without_an_end(
    home: StoreAddress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_rejects, "DIVERTED_ROWS_MAX", 5)
    rejects = open_attempt(home, tmp_path, "skip")
    for step in (1, 2, 3):
        leave_out(home, rejects, step, 90, 1_000)
        rejects.take_batch(step)
    for attempt in (rejects, open_attempt(home, tmp_path, "skip")):
        assert attempt.found.count == 3 * 1_090
        assert len(attempt.found.rows) == REJECTS_SHOWN_MAX


def test_a_stream_that_leaves_no_row_out_reads_nothing(tmp_path: Path) -> None:
    nowhere = StoreAddress(url="s3://nobody", **OWNER)
    rejects = open_attempt(nowhere, tmp_path, "fail")
    rejects.take_batch(1)
    assert (rejects.is_wanted, rejects.found.count) == (False, 0)
