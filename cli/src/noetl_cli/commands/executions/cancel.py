"""`noetl cancel`: stop an execution."""

from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient


def cancel(
    execution_id: ExecutionArgument,
    *,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; kept forever.")] = None,
    cascade: Annotated[
        bool, typer.Option("--cascade/--alone", help="Stop its children too, or leave them.")
    ] = True,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Ask to stop an execution; what has ended stays as it is."""
    with client.open_client(server) as planner:
        answer = request_cancel(planner, execution_id, reason=reason, cascade=cascade)
    if as_json:
        terminal_output.print_json(answer)
    elif answer["accepted"]:
        terminal_output.print_line(f"{answer['execution_id']} is being cancelled.")
    else:
        terminal_output.print_line(
            f"{answer['execution_id']} has already ended: {answer['status']}."
        )


def request_cancel(
    planner: PlannerClient, execution_id: str, *, reason: str | None, cascade: bool = True
) -> dict[str, Any]:
    """Send the wish; it is durable when this returns."""
    address = f"/api/executions/{client.escape_segment(execution_id)}/cancel"
    answer: dict[str, Any] = planner.post(address, {"reason": reason, "cascade": cascade})
    return answer
