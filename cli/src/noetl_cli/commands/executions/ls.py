"""`noetl ls`: executions, newest first."""

from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.planner import client
from noetl_contracts.status import ExecutionStatus


def ls(
    *,
    status: Annotated[
        ExecutionStatus | None,
        typer.Option("--status", case_sensitive=False, help="Only these."),
    ] = None,
    path: Annotated[str | None, typer.Option("--path", help="Only of this playbook.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many.")] = 20,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List executions."""
    chosen = None if status is None else str(status)
    with client.open_client(server) as planner:
        answer = planner.get("/api/executions", status=chosen, path=path, limit=limit)
    found = answer["executions"]
    if as_json:
        for one in found:
            terminal_output.print_json(one)
        return
    head = ("EXECUTION", "STATUS", "STARTED", "SECONDS", "PATH", "STEP")
    terminal_output.print_rows(
        head, [_execution_row(one) for one in found], nothing="No executions."
    )


def _execution_row(one: dict[str, Any]) -> tuple[str, ...]:
    duration = one["duration"]
    return (
        one["execution_id"],
        one["status"],
        (one["started_at"] or "")[:19].replace("T", " "),
        "" if duration is None else f"{duration:.1f}",
        one["path"]
        + (
            f" ({terminal_output.format_version(one['version'])})"
            if (one["version"] or 0) < 0
            else ""
        ),
        one["current_step"] or "",
    )
