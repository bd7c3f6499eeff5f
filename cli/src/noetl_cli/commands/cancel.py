"""`noetl cancel`: stop an execution."""

from typing import Annotated, Any

import typer

from noetl_cli import client, render
from noetl_cli.client import Client
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server


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
        answer = ask(planner, execution_id, reason=reason, cascade=cascade)
    if as_json:
        render.json_line(answer)
    elif answer["accepted"]:
        render.line(f"{answer['execution_id']} is being cancelled.")
    else:
        render.line(f"{answer['execution_id']} has already ended: {answer['status']}.")


def ask(
    planner: Client, execution_id: str, *, reason: str | None, cascade: bool = True
) -> dict[str, Any]:
    """Send the wish; it is durable when this returns."""
    address = f"/api/executions/{client.escaped(execution_id)}/cancel"
    answer: dict[str, Any] = planner.post(address, {"reason": reason, "cascade": cascade})
    return answer
