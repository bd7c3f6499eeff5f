"""`noetl signal`: send a message to the commands that wait for a key."""

from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.files import command_inputs
from noetl_cli.planner import client


def signal(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The correlation key.")],
    *,
    data: Annotated[str, typer.Option("--data", help="The message as JSON.")] = "{}",
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Send a message; it is kept until a task waits for the key."""
    body: Any = command_inputs.read_json(data, option="--data")
    with client.open_client(server) as planner:
        answer = planner.post(f"/api/signals/{client.escape_segment(key)}", body)
    if as_json:
        terminal_output.print_json(answer)
    else:
        terminal_output.print_line(
            "This was sent before." if answer["repeated"] else f"Sent to {key!r}."
        )
