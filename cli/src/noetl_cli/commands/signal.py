"""`noetl signal`: send a message to whoever waits for a key."""

from typing import Annotated, Any

import typer

from noetl_cli import client, inputs, render
from noetl_cli.commands.options import AsJson, Server


def signal(
    key: Annotated[str, typer.Argument(metavar="KEY", help="The correlation key.")],
    *,
    data: Annotated[str, typer.Option("--data", help="The message as JSON.")] = "{}",
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Send a message; it is kept until a task waits for the key."""
    body: Any = inputs.read_json(data, option="--data")
    with client.open_client(server) as planner:
        answer = planner.post(f"/api/signals/{client.escaped(key)}", body)
    if as_json:
        render.json_line(answer)
    else:
        render.line("This was sent before." if answer["repeated"] else f"Sent to {key!r}.")
