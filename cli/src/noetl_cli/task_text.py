"""What the tasks of a step did, in a few words."""

from collections.abc import Iterable, Mapping

from noetl_contracts.task_metrics import TaskMetrics, add_metrics


def describe_tasks(tasks: Mapping[str, TaskMetrics]) -> str:
    """Write rows, failed attempts, requests and bytes; empty when there is nothing to tell."""
    if not tasks:
        return ""
    total = _add_up(tasks.values())
    parts = []
    if total.rows_in is not None:
        parts.append(f"{total.rows_in:,} rows read")
    last_rows = [one.rows_out for one in tasks.values() if one.rows_out is not None]
    if last_rows:
        # The rows of a task that another one takes over are not more rows.
        parts.append(_count(last_rows[-1], "row"))
    if total.failed_attempts:
        parts.append(_count(total.failed_attempts, "failed attempt"))
    if total.last_request is not None:
        request = total.last_request
        answer = "no answer" if request.status is None else str(request.status)
        many = f"{total.requests:,} requests, last " if total.requests > 1 else ""
        parts.append(f"{many}{request.method} {request.url} {answer}")
    if total.bytes_in or total.bytes_out:
        parts.append(f"{total.bytes_in:,} bytes in, {total.bytes_out:,} out")
    return ", ".join(parts)


def _add_up(parts: Iterable[TaskMetrics]) -> TaskMetrics:
    total = TaskMetrics()
    for part in parts:
        total = add_metrics(total, part)
    return total


def _count(number: int, unit: str) -> str:
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"
