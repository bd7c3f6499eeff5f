"""`noetl replay`: what an execution was, what changed, and a folder that proves it anywhere."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from noetl_chassis.clock import SystemClock
from noetl_cli import client, folders, render, settings
from noetl_cli.commands.options import AsJson, ExecutionArgument, Organization, Server, Tenant
from noetl_cli.failures import CliError, ExitCode
from noetl_cli.gathering import Gathering
from noetl_cli.local import history, past_states
from noetl_cli.spinner import show_spinner
from noetl_contracts import codec
from noetl_replay import evidence, evidence_checks
from noetl_replay.evidence import Scope
from noetl_replay.replaying import ALL
from noetl_replay.rows import SURFACES

app = typer.Typer(no_args_is_help=True, help="Look at the past, compare it, and prove it.")

Position = Annotated[int | None, typer.Option("--at", min=1, help="As of this position.")]
Event = Annotated[str | None, typer.Option("--event", help="As of this event.")]
Time = Annotated[
    str | None, typer.Option("--time", help="As of this time, such as 2026-01-31T12:00Z.")
]
Projection = Annotated[
    str, typer.Option("--projection", help=f"One of {', '.join((ALL, *SURFACES))}.")
]


@app.command("state")
def state(  # noqa: PLR0913 - one parameter for each option of the command line
    execution_id: ExecutionArgument,
    *,
    at: Position = None,
    event: Event = None,
    time: Time = None,
    projection: Projection = ALL,
    resolve_payloads: Annotated[
        bool, typer.Option("--resolve-payloads", help="Read every payload and check its digest.")
    ] = False,
    tenant: Tenant = None,
    organization: Organization = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Replay an execution up to a position, an event or a time."""
    kept = history.find_history(execution_id, server=server)
    if kept is not None:
        if resolve_payloads:
            raise _no_payloads(execution_id)
        found = past_states.replay_state(
            kept, at=at, event=event, time=time, projection=_checked_projection(projection)
        )
        _show_state(found, as_json=as_json)
        return
    with client.open_client(server) as planner, show_spinner("Replaying", is_quiet=as_json):
        found = planner.get(
            "/api/replay/state",
            **_asked(execution_id, tenant, organization),
            as_of_position=at,
            as_of_event_id=event,
            as_of_time=time,
            projection=projection,
            resolve_payloads=str(resolve_payloads).lower(),
        )
    _show_state(found, as_json=as_json)


def _show_state(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        render.json_line(found)
        return
    for line in state_lines(found):
        render.line(line)


def state_lines(found: dict[str, Any]) -> list[str]:
    """Write a replayed state for people."""
    where = f"at {found['version']} of {found['head_version']}, event {found['event_id']}"
    lines = [
        f"{found['execution_id']}  {found['status']}  {where}",
        f"state            {found['state_checksum']}",
    ]
    lines += [
        f"{surface:<16} {found['projection_checksums'][surface]}  {len(rows)} rows"
        for surface, rows in found["surfaces"].items()
    ]
    resolution = found.get("payload_resolution")
    if resolution is not None:
        summary = resolution["summary"]
        lines.append(f"payloads         {summary['resolved']} of {summary['payloads']} resolved")
        lines += [
            f"  {one['status']}: {one['sha256']} {one['detail']}"
            for one in resolution["payloads"]
            if one["status"] != evidence.RESOLVED
        ]
    return lines


@app.command("diff")
def diff(
    execution_id: ExecutionArgument,
    before: Annotated[int, typer.Argument(min=1, metavar="FROM", help="The earlier position.")],
    after: Annotated[
        int | None,
        typer.Argument(min=1, metavar="[TO]", help="The later one (default: live rows)."),
    ] = None,
    *,
    projection: Projection = ALL,
    tenant: Tenant = None,
    organization: Organization = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Show what differs between two positions, or between one and the live rows.

    A run with -r local has no live rows: its end stands for them.
    """
    kept = history.find_history(execution_id, server=server)
    if kept is not None:
        found = past_states.diff_states(
            kept, before=before, after=after, projection=_checked_projection(projection)
        )
        _show_diff(found, as_json=as_json)
        return
    with client.open_client(server) as planner, show_spinner("Replaying", is_quiet=as_json):
        found = planner.get(
            "/api/replay/diff",
            **_asked(execution_id, tenant, organization),
            before=before,
            after=after,
            projection=projection,
        )
    _show_diff(found, as_json=as_json)


def _show_diff(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        render.json_line(found)
        return
    other = "live rows, which stand at" if found["is_live"] else "position"
    render.line(f"position {found['before']} -> {other} {found['after']}")
    for line in found["tree"] or ["no difference"]:
        render.line(line)


@app.command("verify")
def verify(
    execution_id: ExecutionArgument,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", help="The new folder (default: evidence-ID).")
    ] = None,
    tenant: Tenant = None,
    organization: Organization = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Compare live rows with a replay, and write the evidence into a folder."""
    if history.find_history(execution_id, server=server) is not None:
        raise _no_payloads(execution_id)
    scope = codec.convert(_asked(execution_id, tenant, organization), Scope)
    try:
        with (
            client.open_client(server) as planner,
            show_spinner("Gathering the evidence", is_quiet=as_json),
        ):
            files = Gathering(planner, scope, SystemClock()).gather()
    except msgspec.ValidationError as failure:
        raise client.no_planner(f"The answer has another shape ({failure})") from failure
    folder = output or Path(f"evidence-{execution_id}")
    folders.write(folder, files)
    _check(folder, as_json=as_json)


@app.command("check")
def check(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of evidence.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Check a folder of evidence from nothing but its files."""
    _check(folder, as_json=as_json)


def _check(folder: Path, *, as_json: bool) -> None:
    """Check a folder and say what it proves; ends with exit code 1 when it does not."""
    with show_spinner(f"Checking the evidence in {folder}", is_quiet=as_json):
        problems = evidence_checks.check(folders.read(folder))
    if as_json:
        render.json_line({"folder": str(folder), "is_good": not problems, "problems": problems})
    elif not problems:
        render.line(f"{folder}: every part is there, unchanged, and agrees with every other.")
    for problem in [] if as_json else problems:
        render.line(f"{problem.artifact}: {problem.message} [{problem.code}]")
    if problems:
        raise typer.Exit(ExitCode.FAILED)


def _checked_projection(projection: str) -> str:
    if projection not in {ALL, *SURFACES}:
        raise CliError(
            f"There is no projection {projection!r}.",
            way_out=f"One of {', '.join((ALL, *SURFACES))}",
            exit_code=ExitCode.USAGE,
        )
    return projection


def _no_payloads(execution_id: str) -> CliError:
    return CliError(
        f"Execution {execution_id} ran with -r local, which keeps neither payloads nor live rows.",
        way_out="Run it in a stack to prove it: noetl up, noetl run FILE",
        exit_code=ExitCode.USAGE,
    )


def _asked(execution_id: str, tenant: str | None, organization: str | None) -> dict[str, str]:
    if not execution_id.isdigit():
        raise CliError(
            f"{execution_id!r} is not an execution id.",
            way_out="List them with: noetl ls",
            exit_code=ExitCode.USAGE,
        )
    place = settings.place(tenant, organization, environ=settings.environment())
    return {"execution_id": execution_id, **place}
