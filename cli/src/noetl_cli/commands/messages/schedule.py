"""`noetl schedule`: what starts playbooks by the clock."""

from pathlib import Path
from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.files import command_inputs
from noetl_cli.planner import client
from noetl_contracts.requests.schedules import CatchUp, Overlap

app = typer.Typer(no_args_is_help=True, help="Keep, list, pause and run schedules.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]


@app.command("put")
def put_schedule(  # noqa: PLR0913 - one parameter for each option of the command line
    name: Name,
    path: Annotated[str, typer.Argument(metavar="PATH", help="A registered playbook.")],
    *,
    cron: Annotated[str, typer.Option("--cron", help='Five fields, such as "30 6 * * MON-FRI".')],
    timezone: Annotated[str, typer.Option("--timezone", help="Such as Europe/Berlin.")] = "UTC",
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="Default: the latest at each firing.")
    ] = None,
    catch_up: Annotated[
        CatchUp, typer.Option("--catch-up", help="Of times that passed while nobody looked.")
    ] = CatchUp.LAST,
    catch_up_max: Annotated[
        int, typer.Option("--catch-up-max", min=1, help="How many `all` is at most.")
    ] = 10,
    overlap: Annotated[
        Overlap, typer.Option("--overlap", help="While the firing before still runs.")
    ] = Overlap.ALLOW,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="An input as name=value; repeat it.")
    ] = None,
    payload: Annotated[
        Path | None, typer.Option("--payload", help="Inputs as JSON or YAML; - is stdin.")
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Keep a schedule; a name that exists is replaced."""
    body = {
        "path": path,
        "cron": cron,
        "timezone": timezone,
        "version": version,
        "catch_up": str(catch_up),
        "catch_up_max": catch_up_max,
        "overlap": str(overlap),
        "workload": command_inputs.read_inputs(payload=payload, sets=sets or [], sets_json=[]),
    }
    with client.open_client(server) as planner:
        answer = planner.put(_build_schedule_address(name), body)
    _print_schedule(answer, as_json=as_json)


@app.command("ls")
def list_schedules(*, server: Server = None, as_json: AsJson = False) -> None:
    """List schedules."""
    with client.open_client(server) as planner:
        schedules = planner.get("/api/schedules")["schedules"]
    if as_json:
        terminal_output.print_json(schedules)
        return
    rows = [
        (
            schedule["name"],
            schedule["path"]
            if schedule["version"] is None
            else f"{schedule['path']}@{schedule['version']}",
            schedule["cron"],
            schedule["timezone"],
            _describe_next(schedule),
            _format_moment(schedule["last_at"]),
            schedule["last_execution_id"] or "-",
            # A planner of the release before does not say.
            str(schedule.get("skipped_count", "-")),
        )
        for schedule in schedules
    ]
    head = ("NAME", "PLAYBOOK", "CRON", "ZONE", "NEXT", "LAST", "EXECUTION", "SKIPPED")
    terminal_output.print_rows(head, rows, nothing="No schedules.")
    terminal_output.print_suspensions(schedules)


@app.command("show")
def show_schedule(
    name: Name,
    *,
    count: Annotated[
        int, typer.Option("--count", "-n", min=0, max=100, help="How many times to come.")
    ] = 5,
    skips: Annotated[
        int, typer.Option("--skips", min=0, max=100, help="How many of what its rules left out.")
    ] = 5,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Show a schedule, the times to come, and those that its rules left out."""
    with client.open_client(server) as planner:
        answer = planner.get(_build_schedule_address(name), count=count, skips=skips)
    _print_schedule(answer, as_json=as_json)
    if not as_json:
        _print_times(answer)


@app.command("rm")
def remove_schedule(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Remove a schedule; what it has started goes on."""
    with client.open_client(server) as planner:
        removed = planner.delete(_build_schedule_address(name))
    if as_json:
        terminal_output.print_json(removed)
    else:
        terminal_output.print_line(f"{removed['name']} is removed.")


@app.command("pause")
def pause_schedule(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Fire nothing until it is resumed."""
    with client.open_client(server) as planner:
        _print_schedule(planner.post(f"{_build_schedule_address(name)}/pause", {}), as_json=as_json)


@app.command("resume")
def resume_schedule(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Fire again, from the next time on; take a suspended one over."""
    with client.open_client(server) as planner:
        _print_schedule(
            planner.post(f"{_build_schedule_address(name)}/resume", {}), as_json=as_json
        )


@app.command("run")
def run_schedule(name: Name, *, server: Server = None, as_json: AsJson = False) -> None:
    """Run what a schedule runs, now and besides its times."""
    with client.open_client(server) as planner:
        accepted = planner.post(f"{_build_schedule_address(name)}/run", {})
    if as_json:
        terminal_output.print_json(accepted)
    else:
        terminal_output.print_line(accepted["execution_id"])
        terminal_output.print_note(f"Watch it: noetl run --attach {accepted['execution_id']}")


def _build_schedule_address(name: str) -> str:
    return f"/api/schedules/{client.escape_segment(name)}"


def _print_schedule(schedule: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal_output.print_json(schedule)
        return
    when = f"next {_format_moment(schedule['next_at'])} UTC" if schedule["enabled"] else "paused"
    terminal_output.print_line(
        f"{schedule['name']}: {schedule['path']} at {schedule['cron']} "
        f"({schedule['timezone']}), {when}"
    )
    terminal_output.print_suspensions([schedule])


def _print_times(schedule: dict[str, Any]) -> None:
    """Print what was left out, what was missed and what comes, in the order of time."""
    # A planner of the release before does not say.
    skips, count = schedule.get("skipped", []), schedule.get("skipped_count", 0)
    if count:
        terminal_output.print_line(f"  {count} skipped so far")
    for skip in reversed(skips):
        terminal_output.print_line(f"  {_describe_skip(skip)}")
    for moment in schedule.get("missed", []):
        terminal_output.print_line(f"  {_format_moment(moment)} UTC missed")
    if schedule.get("has_more_missed"):
        terminal_output.print_line("  ... and later ones were missed")
    for moment in schedule["next"]:
        terminal_output.print_line(f"  {_format_moment(moment)} UTC")


def _describe_skip(skip: dict[str, Any]) -> str:
    """Name the times that were left out, how many they are, and the rule."""
    first, last = _format_moment(skip["first_at"]), _format_moment(skip["last_at"])
    times = first if skip["times"] == 1 else f"{first} to {last}"
    least = "" if skip["is_exact"] else "at least "
    count = "" if skip["times"] == 1 else f" {least}{skip['times']}"
    running_id = skip["running_execution_id"]
    why = "catch-up rule" if running_id is None else f"{running_id} still ran"
    return f"{times} UTC{count} skipped: {why}"


def _describe_next(schedule: dict[str, Any]) -> str:
    if not schedule["enabled"]:
        return "paused"
    # A planner of the release before does not say.
    return "suspended" if schedule.get("suspended") else _format_moment(schedule["next_at"])


def _format_moment(text: str | None) -> str:
    return "-" if text is None else text[:16].replace("T", " ")
