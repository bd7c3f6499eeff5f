"""`noetl trigger`: what messages start."""

from pathlib import Path
from typing import Annotated

import typer

from noetl_cli import client, inputs, render, tables
from noetl_cli.commands.options import AsJson, Server

app = typer.Typer(no_args_is_help=True, help="Keep, list and remove triggers.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The trigger.")]


@app.command("put")
def put(
    name: Name,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A registered playbook.")],
    *,
    subject: Annotated[
        str, typer.Option("--subject", help="What follows noetl.triggers.<tenant>.<org>.")
    ],
    version: Annotated[int | None, typer.Option("--version", min=1)] = None,
    mapping: Annotated[
        Path | None,
        typer.Option("--inputs", help="Templates over body, subject and message_id, as YAML."),
    ] = None,
    disabled: Annotated[
        bool, typer.Option("--disabled", help="Keep it, and let its messages start nothing.")
    ] = False,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Keep a trigger; a name that exists is replaced."""
    body = {
        "subject": subject,
        "path": path,
        "version": version,
        "inputs": {} if mapping is None else inputs.read_mapping(mapping),
        "enabled": not disabled,
    }
    with client.open_client(server) as planner:
        kept = planner.put(f"/api/triggers/{client.escaped(name)}", body)
    if as_json:
        render.json_line(kept)
    else:
        render.line(f"Messages of {kept['publish_to']} start {kept['path']}")


@app.command("ls")
def list_triggers(*, server: Server = None, as_json: AsJson = False) -> None:
    """List triggers."""
    with client.open_client(server) as planner:
        found = planner.get("/api/triggers")["triggers"]
    if as_json:
        render.json_line(found)
        return
    rows = [
        (one["name"], one["path"], one["publish_to"], "yes" if one["enabled"] else "no")
        for one in found
    ]
    tables.show(("NAME", "PLAYBOOK", "SUBJECT", "ENABLED"), rows, nothing="No triggers.")


@app.command("rm")
def remove(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Remove a trigger: messages of its subject become dead letters from now on."""
    with client.open_client(server) as planner:
        removed = planner.delete(f"/api/triggers/{client.escaped(name)}")
    if as_json:
        render.json_line(removed)
    else:
        render.line(f"{removed['name']} is removed.")
