"""`noetl trigger`: what messages start."""

from pathlib import Path
from typing import Annotated

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.files import command_inputs
from noetl_cli.planner import client
from noetl_contracts.requests.triggers import IN_FLIGHT_MAX

app = typer.Typer(no_args_is_help=True, help="Keep, list, pause and remove triggers.")

_BODY_FIELDS = (
    "subject",
    "path",
    "version",
    "inputs",
    "body_bytes_max",
    "filter",
    "max_in_flight",
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="The trigger.")]


@app.command("put")
def put_trigger(  # noqa: PLR0913 - one parameter for each option of the command line
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
    condition: Annotated[
        str | None,
        typer.Option("--filter", help="A condition: other messages start nothing."),
    ] = None,
    in_flight: Annotated[
        int | None,
        typer.Option(
            "--max-in-flight",
            min=1,
            max=IN_FLIGHT_MAX,
            help="How many of its executions run at once; other messages wait.",
        ),
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
        "inputs": {} if mapping is None else command_inputs.read_mapping(mapping),
        "enabled": not disabled,
        # Planners of before do not know it.
        **({} if condition is None else {"filter": condition}),
        **({} if in_flight is None else {"max_in_flight": in_flight}),
    }
    with client.open_client(server) as planner:
        answer = planner.put(f"/api/triggers/{client.escape_segment(name)}", body)
    if as_json:
        terminal_output.print_json(answer)
    else:
        terminal_output.print_line(f"Messages of {answer['publish_to']} start {answer['path']}")


@app.command("ls")
def list_triggers(*, server: Server = None, as_json: AsJson = False) -> None:
    """List triggers."""
    with client.open_client(server) as planner:
        triggers = planner.get("/api/triggers")["triggers"]
    if as_json:
        terminal_output.print_json(triggers)
        return
    rows = [
        (
            trigger["name"],
            trigger["path"],
            trigger["publish_to"],
            "yes" if trigger["enabled"] else "no",
            str(trigger.get("max_in_flight") or ""),
        )
        for trigger in triggers
    ]
    terminal_output.print_rows(
        ("NAME", "PLAYBOOK", "SUBJECT", "ENABLED", "AT ONCE"), rows, nothing="No triggers."
    )
    terminal_output.print_suspensions(triggers)


@app.command("pause")
def pause_trigger(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Let the messages of a trigger become dead letters, to be sent again later."""
    _set_enabled(name, server=server, as_json=as_json, is_enabled=False)


@app.command("resume")
def resume_trigger(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Let the messages of a paused trigger start its playbook again."""
    _set_enabled(name, server=server, as_json=as_json, is_enabled=True)


def _set_enabled(name: str, *, server: str | None, as_json: bool, is_enabled: bool) -> None:
    """Keep a trigger as it is, but for whether its messages start anything."""
    address = f"/api/triggers/{client.escape_segment(name)}"
    with client.open_client(server) as planner:
        answer = planner.get(address)
        body = {field: answer[field] for field in _BODY_FIELDS if field in answer}
        stored = planner.put(address, {**body, "enabled": is_enabled})
    if as_json:
        terminal_output.print_json(stored)
    elif is_enabled:
        terminal_output.print_line(f"{stored['name']} starts {stored['path']} again.")
        terminal_output.print_note("Messages that came meanwhile are dead letters: noetl dlq ls")
    else:
        terminal_output.print_line(f"{stored['name']} is paused: its messages become dead letters.")


@app.command("rm")
def remove_trigger(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Remove a trigger: messages of its subject become dead letters from now on."""
    with client.open_client(server) as planner:
        removed = planner.delete(f"/api/triggers/{client.escape_segment(name)}")
    if as_json:
        terminal_output.print_json(removed)
    else:
        terminal_output.print_line(f"{removed['name']} is removed.")
