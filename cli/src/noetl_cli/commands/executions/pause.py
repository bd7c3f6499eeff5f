"""`noetl pause`: hold an execution."""

from typing import Annotated

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server
from noetl_cli.planner import client


def pause(
    execution_id: ExecutionArgument,
    *,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; kept forever.")] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Dispatch nothing more until it is resumed; what runs may finish."""
    address = f"/api/executions/{client.escape_segment(execution_id)}/pause"
    with client.open_client(server) as planner:
        answer = planner.post(address, {"reason": reason})
    if as_json:
        terminal_output.print_json(answer)
    elif answer["accepted"]:
        terminal_output.print_line(f"{answer['execution_id']} is being held.")
        terminal_output.print_note(f"Let it go on: noetl resume {answer['execution_id']}")
    else:
        terminal_output.print_line(
            f"{answer['execution_id']} has already ended: {answer['status']}."
        )
