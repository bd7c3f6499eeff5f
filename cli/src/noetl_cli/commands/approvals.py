"""`noetl approvals`: what playbooks ask people for."""

from typing import Annotated, Any

import typer

from noetl_cli import client, render, tables
from noetl_cli.commands.options import AsJson, Server


def approvals(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many.")] = 100,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List the approvals that are asked for, the oldest first."""
    with client.open_client(server) as planner:
        found = planner.get("/api/approvals", limit=limit)["approvals"]
    if as_json:
        for one in found:
            render.json_line(one)
        return
    head = ("APPROVAL", "SINCE", "EXECUTION", "STEP", "ASKED", "OPTIONS", "TITLE")
    tables.show(head, [_row(one) for one in found], nothing="Nobody asks for an approval.")


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        one["approval_id"],
        (one["since"] or "")[:19].replace("T", " "),
        one["execution_id"],
        one["step"],
        ", ".join(one["assignees"]),
        ", ".join(one["options"]),
        one["title"] or "",
    )
