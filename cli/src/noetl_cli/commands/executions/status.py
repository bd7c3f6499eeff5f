"""`noetl status`: how an execution stands."""

from datetime import datetime
from typing import Any

from noetl_cli import terminal_output
from noetl_cli.audit import administration_log
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server
from noetl_cli.local import history
from noetl_cli.planner import client
from noetl_cli.terminal import error_text
from noetl_cli.terminal.progress_tracker import (
    describe_tasks,
    format_attempts,
    format_awaited_message,
    format_error,
    format_lateness,
)
from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import MetricsByTask
from noetl_contracts.status import TERMINAL_EXECUTION, ExecutionStatus, RunStatus

STEPS_MAX = 1000


def status(
    execution_id: ExecutionArgument, *, server: Server = None, as_json: AsJson = False
) -> None:
    """Show an execution's status, what its steps did, its loops and its stages."""
    history.check_is_remote(execution_id, server=server)
    address = f"/api/executions/{client.escape_segment(execution_id)}"
    with client.open_client(server) as planner:
        answer = planner.get(f"{address}/status")
        steps = planner.get(f"{address}/steps", limit=STEPS_MAX)
        first_events = planner.get(f"{address}/events", limit=1)["events"]
    if as_json:
        terminal_output.print_json(
            {**answer, "steps": steps["steps"], "has_more_steps": steps["has_more"]}
        )
        return
    for line in [*format_status_lines(answer), *_format_asker_lines(first_events)]:
        terminal_output.print_line(terminal_output.flatten_text(line))
    _show_steps(steps)
    for line in error_text.format_error_lines(answer["error"]) if answer["error"] else ():
        terminal_output.print_line(line)
    if has_failed_items(answer):
        is_over = ExecutionStatus(answer["status"]) in TERMINAL_EXECUTION
        failed_items = error_text.format_failed_items(
            answer["execution_id"], is_over=is_over, whole_step=find_cursor_step(answer)
        )
        terminal_output.print_line(failed_items)


def has_failed_items(status_view: dict[str, Any]) -> bool:
    """Tell whether items or rows of a loop failed."""
    loops = {loop["stage_id"]: loop for loop in status_view["loops"]}
    rows = (stage["rows_failed"] for stage in status_view["stages"] if stage["stage_id"] in loops)
    return any(loop["failed"] for loop in status_view["loops"]) or any(rows)


def find_cursor_step(status_view: dict[str, Any]) -> str | None:
    """Return a cursor's step with failed rows, where no loop of a collection has such."""
    failed = [loop for loop in status_view["loops"] if loop["failed"]]
    is_cursor = bool(failed) and all(loop["mode"] == "cursor" for loop in failed)
    return failed[0]["step"] if is_cursor else None


def _show_steps(answer: dict[str, Any]) -> None:
    rows = [_format_step_row(step) for step in answer["steps"]]
    terminal_output.print_rows(
        ("STEP", "STATUS", "SECONDS", "WHAT IT DID"), rows, nothing="No step has begun."
    )
    if answer["has_more"]:
        terminal_output.print_note(
            f"These are the first {len(rows):,}. All: noetl events {answer['execution_id']}"
        )


def _format_step_row(run: dict[str, Any]) -> tuple[str, ...]:
    tasks = codec.convert_value(run["tasks"], MetricsByTask)
    tries = run.get("tries") or []
    parts = (
        describe_tasks(tasks),
        format_attempts(tries) if tries else "",
        format_error(run["error"]) if run["error"] else "",
    )
    return run["step"], run["status"], f"{run['duration']:.2f}", ", ".join(filter(None, parts))


def _format_asker_lines(first_events: list[dict[str, Any]]) -> list[str]:
    """Name who asked for the execution, by its first event."""
    actor = first_events[0].get("actor") if first_events else None
    return [f"asked for by {administration_log.format_actor(actor)}"] if actor else []


def format_status_lines(status_view: dict[str, Any]) -> list[str]:
    """Write a status for people."""
    duration = status_view["duration"]
    draft = (
        f" {terminal_output.format_version(status_view['version'])}"
        if (status_view["version"] or 0) < 0
        else ""
    )
    head = [f"{status_view['execution_id']}  {status_view['path']}{draft}  {status_view['status']}"]
    if duration is not None:
        head[0] += f"  {duration:.1f} s"
    if status_view["current_step"]:
        head.append(f"step: {status_view['current_step']}")
    if status_view["warnings"]:
        notes = "note says" if status_view["warnings"] == 1 else "notes say"
        events_command = f"noetl events {status_view['execution_id']}"
        head.append(
            f"{status_view['warnings']:,} {notes} what was left out or done otherwise: "
            f"{events_command}"
        )
    frames_by_stage = {stage["stage_id"]: stage for stage in status_view["stages"]}
    head += [
        format_lateness(mark["step"], mark["since"])
        for mark in status_view.get("late", [])
        if mark["ended_at"] is None
    ]
    # Planners of before do not say what is lost, nor what waits for a store or a message.
    lost = status_view.get("lost", [])
    head += [_format_lost_line(work) for work in lost]
    told_places = {(work["pool"], work["lane"]) for work in lost if not work["is_held"]}
    head += [
        _format_waiting_line(item)
        for item in status_view["waiting"]
        if (item["pool"], item["lane"]) not in told_places
    ]
    head += [_store_line(wait) for wait in status_view.get("store_waits", [])]
    head += [_format_awaited_line(message) for message in status_view.get("messages", [])]
    is_ended = ExecutionStatus(status_view["status"]) in TERMINAL_EXECUTION
    return head + [
        _format_loop_line(loop, frames_by_stage, is_ended=is_ended) for loop in status_view["loops"]
    ]


def _format_lost_line(work: dict[str, Any]) -> str:
    steps = ", ".join(work["steps"])
    since = datetime.fromisoformat(work["since"]).strftime("%Y-%m-%d %H:%M:%S")
    what = (
        f"worker {work['worker_id']} holds {steps}, and nothing is heard of it since {since} UTC"
        if work["is_held"]
        else f"worker {work['worker_id']} was lost with {steps}, which waits since {since} UTC"
    )
    return f"{what}: {work['reason']}"


def _format_waiting_line(waiting: dict[str, Any]) -> str:
    count = waiting["commands"]
    return f"{count:,} {'command' if count == 1 else 'commands'} not begun: {waiting['reason']}"


def _store_line(wait: dict[str, Any]) -> str:
    return f"waits for the payload store ({wait['who']}): {wait['reason']}"


def _format_awaited_line(message: dict[str, Any]) -> str:
    return format_awaited_message(
        message["step"],
        message["mode"],
        title=message["title"],
        since=(message["since"] or "")[:19],
        until=(message["until"] or "")[:19] or None,
        command=message["command"],
    )


def _format_loop_line(
    loop: dict[str, Any], stage_by_id: dict[str, dict[str, Any]], *, is_ended: bool
) -> str:
    stage = stage_by_id.get(loop["stage_id"] or "")
    if stage is not None and stage["frames"]:
        failed = f", {stage['rows_failed']:,} failed" if stage["rows_failed"] else ""
        progress_text = f"{stage['rows']:,} rows in {stage['frames']:,} frames{failed}"
    else:
        total = f"/{loop['total']:,}" if loop["total"] else ""
        failed = f", {loop['failed']:,} failed" if loop["failed"] else ""
        progress_text = f"{loop['done']:,}{total} items{failed}"
    # What runs when an execution ends is called off; no event of the loop's own says so.
    is_called_off = is_ended and loop["status"] == RunStatus.RUNNING
    status = RunStatus.CANCELLED if is_called_off else loop["status"]
    return f"  {loop['step']}: {status}  {progress_text}"
