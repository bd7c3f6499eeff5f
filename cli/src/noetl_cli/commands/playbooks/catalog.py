"""`noetl catalog`: the playbooks that can be run by their path."""

from typing import Annotated

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.planner import client

app = typer.Typer(no_args_is_help=True, help="List and show registered playbooks.")


@app.command("ls")
def list_playbooks(*, server: Server = None, as_json: AsJson = False) -> None:
    """List the latest version of every playbook."""
    with client.open_client(server) as planner:
        playbooks = planner.get("/api/catalog")["playbooks"]
    if as_json:
        terminal_output.print_json(playbooks)
        return
    rows = [
        (
            playbook["path"],
            f"v{playbook['version']}",
            (playbook["created_at"] or "")[:19],
            playbook["name"],
        )
        for playbook in playbooks
    ]
    terminal_output.print_rows(
        ("PATH", "VERSION", "REGISTERED", "NAME"), rows, nothing="No playbooks."
    )


@app.command("show")
def show_playbook(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The playbook's path.")],
    *,
    version: Annotated[
        int | None, typer.Option("--version", help="Which one; drafts are below zero.")
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Print a playbook as it was registered."""
    address = "/".join(client.escape_segment(part) for part in path.strip("/").split("/"))
    with client.open_client(server) as planner:
        answer = planner.get(f"/api/catalog/{address}", version=version)
    if as_json:
        terminal_output.print_json(answer)
    else:
        terminal_output.print_text(answer["source"].rstrip("\n"))
