"""`noetl webhook`: what calls from outside start."""

from pathlib import Path
from typing import Annotated

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.files import command_inputs
from noetl_cli.planner import client

app = typer.Typer(no_args_is_help=True, help="Keep, list and remove webhooks.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The webhook.")]


@app.command("put")
def put_webhook(  # noqa: PLR0913 - one parameter for each option of the command line
    name: Name,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A registered playbook.")],
    *,
    credential: Annotated[
        str | None, typer.Option("--credential", help="Its field `secret` signs calls.")
    ] = None,
    unsigned: Annotated[
        bool,
        typer.Option(
            "--unsigned", help="Take calls without a signature, of who may run the playbook."
        ),
    ] = False,
    version: Annotated[int | None, typer.Option("--version", min=1)] = None,
    mapping: Annotated[
        Path | None,
        typer.Option("--inputs", help="Templates over body, headers and query, as YAML or JSON."),
    ] = None,
    signature: Annotated[
        str,
        typer.Option("--signature", help="`call` signs all of a call, `body` as older callers do."),
    ] = "call",
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Keep a webhook; a name that exists is replaced."""
    body = {
        "path": path,
        "version": version,
        "credential": credential,
        "unsigned": unsigned,
        "signature": signature,
        "inputs": {} if mapping is None else command_inputs.read_mapping(mapping),
    }
    with client.open_client(server) as planner:
        answer = planner.put(f"/api/webhooks/{client.escape_segment(name)}", body)
        address = f"{planner.url}{answer['url']}"
    if as_json:
        terminal_output.print_json(answer)
    else:
        signed = "unsigned" if answer["unsigned"] else f"signed with {answer['credential']}"
        terminal_output.print_line(f"POST {address} starts {answer['path']}, {signed}")


@app.command("ls")
def list_webhooks(*, server: Server = None, as_json: AsJson = False) -> None:
    """List webhooks."""
    with client.open_client(server) as planner:
        webhooks = planner.get("/api/webhooks")["webhooks"]
    if as_json:
        terminal_output.print_json(webhooks)
        return
    rows = [
        (webhook["name"], webhook["path"], webhook["credential"] or "unsigned", webhook["url"])
        for webhook in webhooks
    ]
    terminal_output.print_rows(
        ("NAME", "PLAYBOOK", "SIGNED WITH", "ADDRESS"), rows, nothing="No webhooks."
    )
    terminal_output.print_suspensions(webhooks)


@app.command("rm")
def remove_webhook(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Remove a webhook: calls find nothing from now on."""
    with client.open_client(server) as planner:
        removed = planner.delete(f"/api/webhooks/{client.escape_segment(name)}")
    if as_json:
        terminal_output.print_json(removed)
    else:
        terminal_output.print_line(f"{removed['name']} is removed.")
