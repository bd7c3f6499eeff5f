"""What the tasks of a step did: attempts, time, rows, bytes and requests, added up by task."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from noetl_contracts.commands.data_checks import CheckReport, add_reports
from noetl_contracts.ids import CommandId

URL_CHARACTERS_MAX = 300
# Of the metrics of an item: how many milliseconds it took, waits between tries included.
ELAPSED_MS = "elapsed_ms"

Count = Annotated[int, Meta(ge=0)]
# A hint with more bytes is no progress.
BYTES_MAX = 4096
STAGES_MAX = 4
# `session`: Spark is being started; `queue`: other jobs of the worker come first; `job`: it runs.
SparkPhase = Literal["session", "queue", "job"]


class RequestMetrics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The latest request of a task, its URL without secrets; no `status` means no answer."""

    method: str
    url: str
    status: int | None = None


class TaskMetrics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task did in all its attempts, over all rows or items of its step.

    `duration_ms` is the time of its attempts in milliseconds; beside each other they count each.
    `rows_in` are rows that it read, `rows_out` rows that it returned or wrote; None where it has
    none. `bytes_in` came over the network, `bytes_out` went there, as far as the tool tells.
    `checks` are what its last attempt has found in its datasets.
    """

    attempts: Count = 0
    failed_attempts: Count = 0
    duration_ms: Count = 0
    rows_in: Count | None = None
    rows_out: Count | None = None
    bytes_in: Count = 0
    bytes_out: Count = 0
    requests: Count = 0
    last_request: RequestMetrics | None = None
    checks: tuple[CheckReport, ...] = ()


MetricsByTask = dict[str, TaskMetrics]
NO_METRICS: MetricsByTask = {}


def add_task_metrics(
    so_far: Mapping[str, TaskMetrics], later_metrics: Mapping[str, TaskMetrics]
) -> MetricsByTask:
    """Add what tasks did to what they did before."""
    if not so_far:
        return dict(later_metrics)
    total = dict(so_far)
    for name, metrics in later_metrics.items():
        before = total.get(name)
        total[name] = metrics if before is None else sum_metrics(before, metrics)
    return total


def sum_metrics(earlier: TaskMetrics, later: TaskMetrics) -> TaskMetrics:
    """Add up two parts of what one task did, the earlier and the later."""
    return TaskMetrics(
        attempts=earlier.attempts + later.attempts,
        failed_attempts=earlier.failed_attempts + later.failed_attempts,
        duration_ms=earlier.duration_ms + later.duration_ms,
        rows_in=_sum_row_counts(earlier.rows_in, later.rows_in),
        rows_out=_sum_row_counts(earlier.rows_out, later.rows_out),
        bytes_in=earlier.bytes_in + later.bytes_in,
        bytes_out=earlier.bytes_out + later.bytes_out,
        requests=earlier.requests + later.requests,
        last_request=later.last_request or earlier.last_request,
        checks=add_reports(earlier.checks, later.checks),
    )


def _sum_row_counts(earlier: int | None, later: int | None) -> int | None:
    return later if earlier is None else earlier + (later or 0)


class StageProgress(Struct, frozen=True, array_like=True):
    """One stage of Spark that runs: how many of its tasks have ended."""

    stage: int
    tasks_done: int
    tasks: int


class SkewedTask(Struct, frozen=True, kw_only=True):
    """A task that has run many `times` as long as half of the tasks of its stage."""

    stage: int
    task: int
    times: float


class StreamProgress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a stream keeps up: its latest batch, and what waits behind it.

    `rows` and `files` are those of all batches of the execution; `files_behind` had arrived when
    the latest batch began, and are not in it. Rates are rows a second. `watermark` is the time, as
    ISO 8601, before which rows come too late; empty where there is none yet.
    """

    batch: int
    rows: int = 0
    files: int = 0
    files_behind: int = 0
    input_rows_per_s: float = 0.0
    processed_rows_per_s: float = 0.0
    batch_s: float = 0.0
    watermark: str = ""


class SparkProgress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What Spark does for a task, and for how many seconds it has been in this phase.

    `jobs` have begun so far; the first few `stages` that run are told. `rows` and `input_bytes` are
    what Spark's own readers have read, `shuffle_bytes` what went between stages, `spill_bytes` what
    memory had no room for. `usual_s` is how long a session takes to start, `page` the address of
    Spark's own page.
    """

    phase: SparkPhase
    seconds: float
    jobs: int = 0
    stages: tuple[StageProgress, ...] = ()
    tasks_running: int = 0
    rows: int = 0
    input_bytes: int = 0
    shuffle_bytes: int = 0
    spill_bytes: int = 0
    skew: SkewedTask | None = None
    usual_s: float = 0.0
    page: str = ""
    stream: StreamProgress | None = None


class StepProgress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress of one command of a step."""

    step: str
    command_id: CommandId
    attempt: int
    spark: SparkProgress
