"""`noetl approvals`: what playbooks ask people for."""

from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.planner import client


def approvals(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many.")] = 100,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List the approvals that are asked for, the oldest first."""
    with client.open_client(server) as planner:
        open_approvals = planner.get("/api/approvals", limit=limit)["approvals"]
    if as_json:
        for item in open_approvals:
            terminal_output.print_json(item)
        return
    head = ("APPROVAL", "SINCE", "EXECUTION", "STEP", "ASKED", "OPTIONS", "TITLE")
    terminal_output.print_rows(
        head,
        [_format_approval_row(item) for item in open_approvals],
        nothing="Nobody asks for an approval.",
    )


def _format_approval_row(approval: dict[str, Any]) -> tuple[str, ...]:
    return (
        approval["approval_id"],
        (approval["since"] or "")[:19].replace("T", " "),
        approval["execution_id"],
        approval["step"],
        ", ".join(approval["assignees"]),
        ", ".join(approval["options"]),
        approval["title"] or "",
    )
