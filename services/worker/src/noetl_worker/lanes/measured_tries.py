"""What the attempts of a pipeline's tasks did, measured as they end."""

from typing import Any

from noetl_contracts.task_metrics import (
    URL_CHARACTERS_MAX,
    RequestMetrics,
    TaskMetrics,
    add_tasks,
)
from noetl_worker.domain.masking import Mask
from noetl_worker.domain.texts import shortened
from noetl_worker.lanes.block import CompiledTask
from noetl_worker.lanes.counting import count_call
from noetl_worker.lanes.parking import Walk
from noetl_worker.tools.call import Outcome, RequestMade

# These tools tell in their data how many rows they moved; anyone's data may have the same keys.
_KINDS_WITH_ROWS = frozenset({"artifact", "duckdb", "postgres", "spark", "transfer"})


def measure_try(
    walk: Walk, task: CompiledTask, outcome: Outcome, *, duration_s: float, mask: Mask
) -> None:
    """Count an attempt, and add it to what its task did before; a `noop` does nothing."""
    if task.kind == "noop":
        return
    count_call(task.kind, outcome, duration_s)
    rows_in, rows_out = _rows(outcome.data) if task.kind in _KINDS_WITH_ROWS else (None, None)
    request = outcome.request
    one = TaskMetrics(
        attempts=1,
        failed_attempts=0 if outcome.error is None else 1,
        duration_ms=max(0, round(duration_s * 1000)),
        rows_in=rows_in,
        rows_out=rows_out,
        bytes_in=0 if request is None else request.bytes_in,
        bytes_out=0 if request is None else request.bytes_out,
        requests=0 if request is None else 1,
        last_request=None if request is None else _request(request, mask),
    )
    walk.metrics = add_tasks(walk.metrics, {task.name: one})


def _rows(data: Any) -> tuple[int | None, int | None]:
    if not isinstance(data, dict):
        return None, None
    if "rows_transferred" in data:
        return _count(data.get("records_fetched")), _count(data["rows_transferred"])
    return None, _count(data.get("row_count"))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


def _request(made: RequestMade, mask: Mask) -> RequestMetrics:
    return RequestMetrics(
        method=made.method,
        url=shortened(mask.text(made.url), URL_CHARACTERS_MAX),
        status=made.status,
    )
