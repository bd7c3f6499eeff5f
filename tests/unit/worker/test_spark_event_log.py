"""Spark's event log of one task: its own jobs, up to a size."""

from pathlib import Path
from typing import Any

from noetl_contracts import codec
from noetl_worker.spark.event_log import keep_task_events
from noetl_worker.spark.tables.kept_events import KeptEvents

SQL_START = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"


def job(number: int, group: str, stages: list[int], query: int) -> dict[str, Any]:
    return {
        "Event": "SparkListenerJobStart",
        "Job ID": number,
        "Stage IDs": stages,
        "Properties": {"spark.jobGroup.id": group, "spark.sql.execution.id": str(query)},
    }


EVENTS: list[dict[str, Any]] = [
    {"Event": "SparkListenerLogStart", "Spark Version": "4.3.0"},
    {"Event": SQL_START, "executionId": 5},
    {"Event": SQL_START, "executionId": 6},
    job(1, "mine", [1, 2], 5),
    job(2, "other", [3], 6),
    {"Event": "SparkListenerStageSubmitted", "Stage Info": {"Stage ID": 1}},
    {"Event": "SparkListenerStageSubmitted", "Stage Info": {"Stage ID": 3}},
    {"Event": "SparkListenerTaskEnd", "Stage ID": 2},
    {"Event": "SparkListenerTaskEnd", "Stage ID": 3},
    {"Event": "SparkListenerJobEnd", "Job ID": 1},
    {"Event": "SparkListenerBlockManagerAdded"},
]
MINE = [0, 1, 3, 5, 7, 9]


def write_log(folder: Path) -> list[str]:
    lines = [codec.encode_text(event) for event in EVENTS]
    # The driver has died in the middle of the last one.
    (folder / "task.inprogress").write_text("".join(f"{line}\n" for line in lines) + '{"Event": "S')
    (folder / ".task.inprogress.crc").write_bytes(b"\xff")
    return lines


def test_only_the_events_of_a_tasks_own_jobs_are_kept(tmp_path: Path) -> None:
    lines = write_log(tmp_path)
    kept = KeptEvents()
    keep_task_events(tmp_path, "mine", kept)
    assert kept.lines == [lines[number] for number in MINE]
    assert kept.left_out == 0


def test_what_has_no_room_is_counted(tmp_path: Path) -> None:
    lines = write_log(tmp_path)
    kept = KeptEvents(bytes_max=len(lines[0]) + len(lines[1]))
    keep_task_events(tmp_path, "mine", kept)
    assert kept.lines == lines[:2]
    assert kept.left_out == len(MINE) - 2
