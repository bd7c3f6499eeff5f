"""`noetl trace`: which results led to a step's result."""

from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server
from noetl_cli.planner import client

LIMIT = 100
_DIGEST_SHOWN = 12


def trace(
    execution_id: ExecutionArgument,
    step: Annotated[str, typer.Argument(metavar="STEP", help="The step whose result it is.")],
    *,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many runs back.")] = LIMIT,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Show the runs that led to the latest run of a step, the nearest first."""
    address = (
        f"/api/executions/{client.escape_segment(execution_id)}/trace/{client.escape_segment(step)}"
    )
    with client.open_client(server) as planner:
        answer = planner.get(address, limit=limit)
    if as_json:
        terminal_output.print_json(answer)
        return
    rows = [_link_row(link) for link in answer["links"]]
    terminal_output.print_rows(
        ("STEP", "STATUS", "REF", "ROWS", "BYTES", "SHA256"), rows, nothing=""
    )
    if answer["source"] == "references":
        terminal_output.print_line(
            "The ledger has this history no more: runs with stored results alone are here."
        )
    if answer["has_more"]:
        terminal_output.print_line(
            f"The chain goes on: noetl trace {execution_id} {step} --limit 1000"
        )


def _link_row(link: dict[str, Any]) -> tuple[str, ...]:
    return (
        link["step"],
        link["status"],
        link["ref_id"] or "",
        "" if link["row_count"] is None else str(link["row_count"]),
        "inline" if link["bytes"] is None and link["ref_id"] else str(link["bytes"] or ""),
        (link["sha256"] or "")[:_DIGEST_SHOWN],
    )
