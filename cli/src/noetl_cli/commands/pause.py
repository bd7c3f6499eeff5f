"""`noetl pause`: hold an execution."""

from typing import Annotated

import typer

from noetl_cli import client, render
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server


def pause(
    execution_id: ExecutionArgument,
    *,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; kept forever.")] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Dispatch nothing more until it is resumed; what runs may finish."""
    address = f"/api/executions/{client.escaped(execution_id)}/pause"
    with client.open_client(server) as planner:
        answer = planner.post(address, {"reason": reason})
    if as_json:
        render.json_line(answer)
    elif answer["accepted"]:
        render.line(f"{answer['execution_id']} is being held.")
        render.note(f"Let it go on: noetl resume {answer['execution_id']}")
    else:
        render.line(f"{answer['execution_id']} has already ended: {answer['status']}.")
