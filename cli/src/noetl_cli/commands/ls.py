"""`noetl ls`: executions, newest first."""

from typing import Annotated, Any

import typer

from noetl_cli import client, render, tables
from noetl_cli.commands.options import AsJson, Server
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
            render.json_line(one)
        return
    head = ("EXECUTION", "STATUS", "STARTED", "SECONDS", "PATH", "STEP")
    tables.show(head, [_row(one) for one in found], nothing="No executions.")


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    duration = one["duration"]
    return (
        one["execution_id"],
        one["status"],
        (one["started_at"] or "")[:19].replace("T", " "),
        "" if duration is None else f"{duration:.1f}",
        one["path"]
        + (f" ({render.name_version(one['version'])})" if (one["version"] or 0) < 0 else ""),
        one["current_step"] or "",
    )
