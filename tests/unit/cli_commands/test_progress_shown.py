"""How far Spark is shows on a terminal and in plain lines, and not among the events in JSON."""

import io
import time
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console

from noetl_cli.planner import execution_stream
from noetl_cli.planner.execution_stream import ExecutionStream
from noetl_cli.terminal import display
from noetl_cli.terminal.display import BarDisplay, JsonDisplay, LineDisplay, format_spark_progress
from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import (
    SkewedTask,
    SparkProgress,
    StageProgress,
    StepProgress,
    StreamProgress,
)
from noetl_contracts.ids import CommandId


def progress_of(phase: str, *, seconds: float = 2.0, **spark: Any) -> StepProgress:
    return StepProgress(
        step="load",
        command_id=CommandId("7"),
        attempt=1,
        spark=SparkProgress(phase=phase, seconds=seconds, **spark),  # type: ignore[arg-type]  # one of its words
    )


def running(done: int) -> StepProgress:
    return progress_of("job", jobs=2, stages=(StageProgress(7, done, 1_200),))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the displays take for the time."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_each_phase_is_told_in_words() -> None:
    assert [
        format_spark_progress(item.spark)
        for item in (
            progress_of("session"),
            progress_of("queue"),
            progress_of("job"),
            progress_of("job", jobs=3),
            running(45),
        )
    ] == [
        "Spark session starts",
        "waits for other Spark jobs of its worker",
        "Spark works, no job yet",
        "Spark job 3: no stage runs",
        "Spark job 2: stage 7 45/1,200 tasks",
    ]


def test_what_tasks_read_and_move_and_the_slowest_are_told() -> None:
    work = {
        "tasks_running": 2,
        "rows": 1_200_000,
        "input_bytes": 80_400_000,
        "shuffle_bytes": 12_000,
        "skew": SkewedTask(stage=7, task=17, times=6.5),
    }
    told = progress_of("job", jobs=1, stages=(StageProgress(7, 45, 200),), **work)
    assert format_spark_progress(told.spark) == (
        "Spark job 1: stage 7 45/200 tasks, 2 run, 1,200,000 rows, 80 MB read, 12.0 kB shuffled, "
        "task 17 of stage 7 runs 6.5 times the median: skewed rows"
    )
    started = format_spark_progress(progress_of("session", usual_s=8.2).spark)
    assert started == "Spark session starts (usually 8 s)"


def test_a_stream_tells_how_it_keeps_up() -> None:
    stream = StreamProgress(
        batch=12, rows=60_000, files=24, files_behind=3, processed_rows_per_s=2500.4, batch_s=1.26
    )
    told = progress_of("job", jobs=3, stream=stream)
    assert format_spark_progress(told.spark) == (
        "stream: batch 12, 60,000 rows of 24 files, 2,500 rows/s, 1.3 s a batch, 3 files behind"
    )
    late = structs.replace(stream, watermark="2026-01-01T12:00:00.000Z")
    text = format_spark_progress(progress_of("job", jobs=3, stream=late).spark)
    assert text.endswith("3 files behind, watermark 2026-01-01T12:00:00")


def test_the_address_of_the_page_is_told_once(clock: list[float]) -> None:
    lines: list[str] = []
    shown = LineDisplay(lines.append)
    for _ in range(3):
        clock[0] += display.PROGRESS_AGAIN_S
        shown.show_progress(progress_of("job", page="http://127.0.0.1:4040"))
    assert lines.count("load: Spark's page is http://127.0.0.1:4040") == 1
    assert len(lines) == 4


def test_lines_say_what_has_changed_and_now_and_then_what_has_not(clock: list[float]) -> None:
    lines: list[str] = []
    shown = LineDisplay(lines.append)
    for after_s, progress in (
        (0, progress_of("session")),
        (1, progress_of("session", seconds=3)),
        (1, running(1)),
        (1, running(2)),
        (1, running(3)),
        (display.PROGRESS_AGAIN_S, running(3)),
    ):
        clock[0] += after_s
        shown.show_progress(progress)
    assert lines == [
        "load: Spark session starts, 2 s",
        "load: Spark job 2: stage 7 1/1,200 tasks, 2 s",
        "load: Spark job 2: stage 7 3/1,200 tasks, 2 s",
        "load: Spark job 2: stage 7 3/1,200 tasks, 2 s",
    ]


def test_a_terminal_has_a_bar_until_nothing_is_told_any_more(clock: list[float]) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    with BarDisplay(console) as shown:
        shown.show_progress(progress_of("session"))
        shown._progress.refresh()
        shown.show_progress(running(45))
        shown._progress.refresh()
        (task,) = shown._progress.tasks
        assert (task.completed, task.total) == (45, 1_200)
        clock[0] += display.PROGRESS_OLD_S + 1
        shown._drop_old_bars()
        assert shown._progress.tasks == []
    assert "Spark session starts, 2 s" in out.getvalue()
    assert "stage 7 45/1,200 tasks" in out.getvalue()


def test_json_holds_events_alone(capsys: pytest.CaptureFixture[str]) -> None:
    JsonDisplay("5").show_progress(running(1))
    assert capsys.readouterr().out == ""


def test_progress_stands_between_events_and_moves_no_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []

    def read_messages(_: Any, path: str, *, after: str) -> list[execution_stream.StreamMessage]:
        asked.append((path, after))
        return [
            execution_stream.StreamMessage(event="step.enter", data='{"version": 4}'),
            execution_stream.StreamMessage(event="progress", data=codec.encode_text(running(1))),
            execution_stream.StreamMessage(event="progress", data='{"of": "a newer form"}'),
            execution_stream.StreamMessage(event="end", data="{}"),
        ]

    monkeypatch.setattr(execution_stream, "read_messages", read_messages)
    following = ExecutionStream(None, "5", after=3)  # type: ignore[arg-type]  # nobody is asked
    assert list(following.read_events(lambda _: None)) == [{"version": 4}, running(1)]
    assert asked == [("/api/executions/5/stream?progress=true", "3")]
