"""`noetl notify`: what is started because executions failed or recovered."""

from typing import Annotated

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.planner import client

app = typer.Typer(no_args_is_help=True, help="Start a playbook when executions fail or recover.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The rule.")]


@app.command("put")
def put_rule(
    name: Name,
    playbook: Annotated[
        str, typer.Argument(metavar="PATH", help="The playbook to start, with `notification`.")
    ],
    *,
    pattern: Annotated[
        str, typer.Option("--of", help="Whose executions: a path, FOLDER/*, or * for all.")
    ] = "*",
    causes: Annotated[
        list[str] | None, typer.Option("--on", help="failed (default) or recovered; repeatable.")
    ] = None,
    longer_than_s: Annotated[
        float, typer.Option("--longer-than", min=0, help="Only if it ran so many seconds.")
    ] = 0.0,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Keep a rule; a name that exists is replaced."""
    body = {
        "pattern": pattern,
        "causes": causes or ["failed"],
        "longer_than_s": longer_than_s,
        "playbook": playbook,
    }
    with client.open_client(server) as planner:
        kept = planner.put(f"/api/notifications/{client.escape_segment(name)}", body)
    if as_json:
        terminal_output.print_json(kept)
    else:
        when = " or ".join(kept["causes"])
        terminal_output.print_line(f"{kept['playbook']} starts when {kept['pattern']} {when}.")


@app.command("ls")
def list_rules(*, server: Server = None, as_json: AsJson = False) -> None:
    """List the rules."""
    with client.open_client(server) as planner:
        rules = planner.get("/api/notifications")["rules"]
    if as_json:
        terminal_output.print_json(rules)
        return
    rows = [
        (
            rule["name"],
            rule["pattern"],
            ",".join(rule["causes"]),
            f"{rule['longer_than_s']:g} s",
            rule["playbook"],
        )
        for rule in rules
    ]
    terminal_output.print_rows(
        ("NAME", "OF", "ON", "LONGER THAN", "STARTS"), rows, nothing="No rules."
    )
    terminal_output.print_suspensions(rules)


@app.command("rm")
def remove_rule(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Remove a rule: nothing is sent by it from now on."""
    with client.open_client(server) as planner:
        removed = planner.delete(f"/api/notifications/{client.escape_segment(name)}")
    if as_json:
        terminal_output.print_json(removed)
    else:
        terminal_output.print_line(f"{removed['name']} is removed.")


@app.command("test")
def send_test(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Start a rule's playbook now, about an execution that never was."""
    with client.open_client(server) as planner:
        begun = planner.post(f"/api/notifications/{client.escape_segment(name)}/test", {})
    if as_json:
        terminal_output.print_json(begun)
    else:
        terminal_output.print_line(f"{begun['path']} is started: {begun['execution_id']}")


@app.command("log")
def list_sent(
    *,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000)] = 100,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """List what was sent, the latest first."""
    with client.open_client(server) as planner:
        sent = planner.get(f"/api/notifications/log?limit={limit}")["notifications"]
    if as_json:
        terminal_output.print_json(sent)
        return
    rows = [
        (
            one["sent_at"],
            one["rule"],
            one["cause"],
            one["path"],
            one["execution_id"],
            one["delivered_by"],
            one["status"],
        )
        for one in sent
    ]
    terminal_output.print_rows(
        ("SENT", "RULE", "CAUSE", "PLAYBOOK", "EXECUTION", "DELIVERED BY", "STATUS"),
        rows,
        nothing="Nothing was sent.",
    )
