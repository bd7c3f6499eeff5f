"""`noetl notify`: what is started because executions failed, recovered, are late or wait."""

from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.planner import client
from noetl_contracts.requests.notifications import Cause

app = typer.Typer(
    no_args_is_help=True, help="Start a playbook when executions fail, recover, are late or wait."
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The rule.")]


@app.command("put")
def put_rule(  # noqa: PLR0913 - one parameter for each option of the command line
    name: Name,
    playbook: Annotated[
        str, typer.Argument(metavar="PATH", help="The playbook to start, with `notification`.")
    ],
    *,
    pattern: Annotated[
        str, typer.Option("--of", help="Whose executions: a path, FOLDER/*, or * for all.")
    ] = "*",
    causes: Annotated[
        list[Cause] | None,
        typer.Option("--on", help="The default is failed; repeatable."),
    ] = None,
    longer_than_s: Annotated[
        float,
        typer.Option("--longer-than", min=0, help="If it ran, runs or waits so many seconds."),
    ] = 0.0,
    quiet: Annotated[
        str | None,
        typer.Option("--quiet", metavar="FROM-TO", help="Hold back what comes: 22:00-07:00."),
    ] = None,
    zone: Annotated[str, typer.Option("--zone", help="Of the quiet hours.")] = "UTC",
    quiet_days: Annotated[
        list[str] | None,
        typer.Option("--quiet-day", help="On which they begin: mon ... sun; repeatable."),
    ] = None,
    urgent: Annotated[
        list[Cause] | None,
        typer.Option("--urgent", help="Causes that are not held; repeatable."),
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Keep a rule; a name that exists is replaced."""
    body = {
        "pattern": pattern,
        "causes": [str(cause) for cause in causes or [Cause.FAILED]],
        "longer_than_s": longer_than_s,
        "playbook": playbook,
        "quiet": _read_quiet_hours(quiet, zone, quiet_days or []),
        "urgent": [str(cause) for cause in urgent or []],
    }
    with client.open_client(server) as planner:
        answer = planner.put(f"/api/notifications/{client.escape_segment(name)}", body)
    if as_json:
        terminal_output.print_json(answer)
    else:
        when = " or ".join(
            _describe_cause(cause, answer["longer_than_s"]) for cause in answer["causes"]
        )
        terminal_output.print_line(f"{answer['playbook']} starts when {answer['pattern']} {when}.")


def _read_quiet_hours(text: str | None, zone: str, days: list[str]) -> dict[str, Any] | None:
    if text is None:
        return None
    start, dash, end = text.partition("-")
    if not dash:
        raise typer.BadParameter(
            f"{text!r} is not FROM-TO, such as 22:00-07:00", param_hint="--quiet"
        )
    return {"from": start, "to": end, "zone": zone, "days": days}


def _describe_quiet_hours(quiet: dict[str, Any] | None) -> str:
    if not quiet:
        return ""
    return " ".join([f"{quiet['from']}-{quiet['to']}", quiet["zone"], *quiet["days"]])


def _describe_cause(cause: str, longer_than_s: float) -> str:
    if cause == Cause.WAITING:
        return "waits for an approval" + (f" for {longer_than_s:g} s" if longer_than_s else "")
    if cause == Cause.LATE:
        return f"still runs after {longer_than_s:g} s" if longer_than_s else "passes a deadline"
    return cause


def _describe_last_test(rule: dict[str, Any]) -> str:
    """Say when a rule was tested last, by whom and with which outcome."""
    # A planner of the release before does not say.
    tests = rule.get("tests")
    if not tests:
        return "-"
    test = tests[0]
    sent_at = test["sent_at"][:16].replace("T", " ")
    return f"{sent_at} {test['status'] or 'not shown'} by {test['actor']}"


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
            _describe_quiet_hours(rule.get("quiet")),
            rule["playbook"],
            _describe_last_test(rule),
        )
        for rule in rules
    ]
    terminal_output.print_rows(
        ("NAME", "OF", "ON", "LONGER THAN", "QUIET", "STARTS", "LAST TEST"),
        rows,
        nothing="No rules.",
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
        answer = planner.post(f"/api/notifications/{client.escape_segment(name)}/test", {})
    if as_json:
        terminal_output.print_json(answer)
    else:
        terminal_output.print_line(f"{answer['path']} is started: {answer['execution_id']}")


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
            item["sent_at"],
            item["rule"],
            item["cause"],
            item["path"],
            item["execution_id"],
            item["delivered_by"] or "",
            item["status"],
        )
        for item in sent
    ]
    terminal_output.print_rows(
        ("SENT", "RULE", "CAUSE", "PLAYBOOK", "EXECUTION", "DELIVERED BY", "STATUS"),
        rows,
        nothing="Nothing was sent.",
    )
