"""What a person reads of what a step did."""

from noetl_cli.terminal.progress_tracker import describe_tasks
from noetl_contracts.commands.data_checks import CheckReport
from noetl_contracts.commands.task_metrics import RequestMetrics, TaskMetrics


def test_nothing_is_said_of_steps_without_tasks() -> None:
    assert describe_tasks({}) == ""
    assert describe_tasks({"run": TaskMetrics(attempts=1, duration_ms=5)}) == ""


def test_a_request_its_answer_and_its_bytes_are_named() -> None:
    request = RequestMetrics(method="GET", url="https://api.example/rows", status=200)
    fetch = TaskMetrics(attempts=1, requests=1, bytes_in=12_345, last_request=request)
    assert describe_tasks({"fetch": fetch}) == (
        "GET https://api.example/rows 200, 12,345 bytes in, 0 out"
    )


def test_of_many_requests_the_last_is_named_and_failures_are_counted() -> None:
    request = RequestMetrics(method="POST", url="https://api.example/rows")
    send = TaskMetrics(
        attempts=1200, failed_attempts=2, requests=1200, bytes_out=5, last_request=request
    )
    assert describe_tasks({"send": send}) == (
        "2 failed attempts, 1,200 requests, last POST https://api.example/rows no answer, "
        "0 bytes in, 5 out"
    )


def test_rows_are_those_of_the_last_task_that_has_some() -> None:
    tasks = {
        "read": TaskMetrics(attempts=1, rows_out=2000),
        "load": TaskMetrics(attempts=1, rows_in=2000, rows_out=1),
        "tell": TaskMetrics(attempts=1),
    }
    assert describe_tasks(tasks) == "2,000 rows read, 1 row"


def test_broken_checks_are_named_and_the_others_counted() -> None:
    def build_task(*failed_rows: int) -> TaskMetrics:
        checks = tuple(
            CheckReport(dataset="orders", check=f"c{place}", is_met=not rows, failed_rows=rows)
            for place, rows in enumerate(failed_rows)
        )
        return TaskMetrics(attempts=1, checks=checks)

    assert describe_tasks({"load": build_task(0)}) == "1 check held"
    assert describe_tasks({"load": build_task(0, 4, 0)}) == "1 of 3 checks broken (orders: c1)"
    assert describe_tasks({"load": build_task(1, 1, 1, 1)}) == (
        "4 of 4 checks broken (orders: c0; orders: c1; orders: c2; …)"
    )
