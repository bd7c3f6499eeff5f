"""Records of a task's attempts: counters, failed tries and metrics."""

from datetime import datetime
from functools import cache
from typing import Any

from msgspec import structs

from noetl_chassis.observability import instruments, names
from noetl_chassis.observability.instruments import CounterSum
from noetl_contracts import codec
from noetl_contracts.commands.data_checks import REPORTED_CHARACTERS_MAX, CheckReport
from noetl_contracts.commands.task_metrics import (
    URL_CHARACTERS_MAX,
    RequestMetrics,
    TaskMetrics,
    add_task_metrics,
)
from noetl_contracts.errors import TRIES_MAX, ErrorObject, FailedTry
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.domain.text_values import shorten_text
from noetl_worker.pipeline.compiled_tasks import CompiledTask
from noetl_worker.pipeline.parked_work import PipelinePosition
from noetl_worker.tools.calls.call import Outcome, RequestMade

_MESSAGE_CHARACTERS_MAX = 300
# These tools tell in their data how many rows they moved; anyone's data may have the same keys.
_KINDS_WITH_ROWS = frozenset({"artifact", "duckdb", "postgres", "spark", "transfer"})
_KINDS_WITH_CHECKS = frozenset({"duckdb", "postgres", "spark", "transfer"})


def count_call(kind: str, outcome: Outcome, duration_s: float) -> None:
    """Count a call, and its time."""
    calls, seconds = _get_counters(kind, "ok" if outcome.error is None else outcome.error.kind)
    calls.add_amount()
    seconds.add_amount(duration_s)


@cache
def _get_counters(kind: str, outcome: str) -> tuple[CounterSum, CounterSum]:
    """Give where calls of a tool that ended so are counted, and their time."""
    by_outcome = {names.TOOL: kind, names.OUTCOME: outcome}
    return (
        instruments.get_counter_sum(names.TOOL_CALLS, labels=by_outcome),
        instruments.get_counter_sum(names.TOOL_SECONDS, labels={names.TOOL: kind}),
    )


def record_failed_try(
    walk: PipelinePosition, task: str, error: ErrorObject, *, now: datetime
) -> None:
    """Keep what the current attempt failed of; of more than `TRIES_MAX` the latest stay."""
    failed_try = FailedTry(
        task=task,
        attempt=walk.attempt,
        at=walk.started_at or now,
        kind=error.kind,
        message=shorten_text(error.message, _MESSAGE_CHARACTERS_MAX),
        code=error.code,
    )
    walk.tries = [*walk.tries, failed_try][-TRIES_MAX:]


def list_failed_tries(walk: PipelinePosition, task: str | None) -> list[FailedTry]:
    """List the attempts of one task that failed before the current one."""
    return [failed_try for failed_try in walk.tries if failed_try.task == task]


def record_metrics(
    walk: PipelinePosition,
    task: CompiledTask,
    outcome: Outcome,
    *,
    duration_s: float,
    mask: SecretMask,
) -> None:
    """Count an attempt, and add it to what its task did before; a `noop` does nothing.

    What checks have found is of the last attempt alone: the one before read the same rows.
    """
    if task.kind == "noop":
        return
    count_call(task.kind, outcome, duration_s)
    rows_in, rows_out = (
        _read_row_counts(outcome.data) if task.kind in _KINDS_WITH_ROWS else (None, None)
    )
    request = outcome.request
    task_metrics = TaskMetrics(
        attempts=1,
        failed_attempts=0 if outcome.error is None else 1,
        duration_ms=max(0, round(duration_s * 1000)),
        rows_in=rows_in,
        rows_out=rows_out,
        bytes_in=0 if request is None else request.bytes_in,
        bytes_out=0 if request is None else request.bytes_out,
        requests=0 if request is None else 1,
        last_request=None if request is None else _build_request_metrics(request, mask),
        checks=_read_checks(outcome) if task.kind in _KINDS_WITH_CHECKS else (),
    )
    earlier_metrics = walk.metrics
    if task.name in earlier_metrics and earlier_metrics[task.name].checks:
        without_checks = structs.replace(earlier_metrics[task.name], checks=())
        earlier_metrics = {**earlier_metrics, task.name: without_checks}
    walk.metrics = add_task_metrics(earlier_metrics, {task.name: task_metrics})


def _read_checks(outcome: Outcome) -> tuple[CheckReport, ...]:
    """Read what checks have found, of a result or of the failure of a check."""
    source = outcome.data if outcome.error is None else outcome.error.details
    reports = source.get("checks") if isinstance(source, dict) else None
    if not isinstance(reports, list):
        return ()
    return tuple(
        structs.replace(report, check=shorten_text(report.check, REPORTED_CHARACTERS_MAX))
        for report in codec.convert_value(reports, list[CheckReport])
    )


def _read_row_counts(data: Any) -> tuple[int | None, int | None]:
    if not isinstance(data, dict):
        return None, None
    if "rows_transferred" in data:
        return _parse_count(data.get("records_fetched")), _parse_count(data["rows_transferred"])
    return None, _parse_count(data.get("row_count"))


def _parse_count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _build_request_metrics(request_made: RequestMade, mask: SecretMask) -> RequestMetrics:
    return RequestMetrics(
        method=request_made.method,
        url=shorten_text(mask.mask_text(request_made.url), URL_CHARACTERS_MAX),
        status=request_made.status,
    )
