"""`noetl replay`: what an execution was, what changed, and a folder that proves it anywhere."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from noetl_chassis.clock import SystemClock
from noetl_cli import terminal_output
from noetl_cli.audit import evidence as audit_evidence
from noetl_cli.audit.evidence import EvidenceCollector
from noetl_cli.commands.history import replay_counterfactual
from noetl_cli.commands.options import AsJson, ExecutionArgument, Organization, Server, Tenant
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.local import history, past_state
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient
from noetl_cli.planner.folded_answer import fetch_folded
from noetl_cli.terminal_output import show_progress, show_spinner
from noetl_contracts import codec
from noetl_replay.audit import event_actors, evidence, evidence_folder
from noetl_replay.audit.evidence import EvidenceScope
from noetl_replay.history_replay import ALL
from noetl_replay.rows import SURFACES

app = typer.Typer(no_args_is_help=True, help="Look at the past, compare it, and prove it.")
app.command("counterfactual")(replay_counterfactual.decide_counterfactual)

Position = Annotated[int | None, typer.Option("--at", min=1, help="As of this position.")]
Event = Annotated[str | None, typer.Option("--event", help="As of this event.")]
Time = Annotated[
    str | None, typer.Option("--time", help="As of this time, such as 2026-01-31T12:00Z.")
]
Projection = Annotated[
    str, typer.Option("--projection", help=f"One of {', '.join((ALL, *SURFACES))}.")
]


@app.command("state")
def show_replayed_state(  # noqa: PLR0913 - one parameter for each option of the command line
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
    local_history = history.find_history(execution_id, server=server)
    if local_history is not None:
        if resolve_payloads:
            raise build_no_payloads_error(execution_id)
        state = past_state.replay_state(
            local_history, at=at, event=event, time=time, projection=_check_projection(projection)
        )
        _print_state(state, as_json=as_json)
        return
    with (
        client.open_client(server, tenant=tenant, organization=organization) as planner,
        show_progress("Replaying", is_quiet=as_json) as show_folded,
    ):
        state = fetch_folded(
            planner,
            "/api/replay/state",
            show_progress=show_folded,
            **_build_execution_query(planner, execution_id),
            as_of_position=at,
            as_of_event_id=event,
            as_of_time=time,
            projection=projection,
            # People are shown how many there are.
            rows=str(as_json).lower(),
            resolve_payloads=str(resolve_payloads).lower(),
        )
    _print_state(state, as_json=as_json)


def _print_state(replay: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal_output.print_json(replay)
        return
    for line in format_state_lines(replay):
        terminal_output.print_line(line)


def format_state_lines(replay: dict[str, Any]) -> list[str]:
    """Write a replayed state for people."""
    where = f"at {replay['version']} of {replay['head_version']}, event {replay['event_id']}"
    lines = [
        f"{replay['execution_id']}  {replay['status']}  {where}",
        f"state            {replay['state_checksum']}",
    ]
    counts = replay.get("row_counts") or {
        surface: len(rows) for surface, rows in replay["surfaces"].items()
    }
    lines += [
        f"{surface:<16} {checksum}  {counts[surface]} rows"
        for surface, checksum in replay["projection_checksums"].items()
    ]
    resolution = replay.get("payload_resolution")
    if resolution is not None:
        summary = resolution["summary"]
        lines.append(f"payloads         {summary['resolved']} of {summary['payloads']} resolved")
        lines += [
            f"  {payload['status']}: {payload['sha256']} {payload['detail']}"
            for payload in resolution["payloads"]
            if payload["status"] != evidence.RESOLVED
        ]
    return lines


@app.command("diff")
def diff_positions(
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
    local_history = history.find_history(execution_id, server=server)
    if local_history is not None:
        states = past_state.diff_states(
            local_history, before=before, after=after, projection=_check_projection(projection)
        )
        _print_diff(states, as_json=as_json)
        return
    with (
        client.open_client(server, tenant=tenant, organization=organization) as planner,
        show_progress("Replaying", is_quiet=as_json) as show_folded,
    ):
        states = fetch_folded(
            planner,
            "/api/replay/diff",
            show_progress=show_folded,
            **_build_execution_query(planner, execution_id),
            before=before,
            after=after,
            projection=projection,
        )
    _print_diff(states, as_json=as_json)


def _print_diff(differences: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal_output.print_json(differences)
        return
    other = "live rows, which stand at" if differences["is_live"] else "position"
    terminal_output.print_line(
        f"position {differences['before']} -> {other} {differences['after']}"
    )
    for line in differences["tree"] or ["no difference"]:
        terminal_output.print_line(line)
    if differences.get("more_rows"):
        terminal_output.print_note(
            f"{differences['more_rows']:,} more rows differ. For closer positions there are fewer."
        )


@app.command("verify")
def verify_execution(
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
        raise build_no_payloads_error(execution_id)
    try:
        with (
            client.open_client(server, tenant=tenant, organization=organization) as planner,
            show_spinner("Gathering the evidence", is_quiet=as_json),
        ):
            scope = codec.convert_value(
                _build_execution_query(planner, execution_id), EvidenceScope
            )
            files = EvidenceCollector(planner, scope, SystemClock()).collect_files()
    except msgspec.ValidationError as failure:
        raise client.build_not_a_planner_error(
            f"The answer has another shape ({failure})"
        ) from failure
    folder = output or Path(f"evidence-{execution_id}")
    audit_evidence.write_evidence(folder, files)
    _check(folder, as_json=as_json)


@app.command("check")
def check_evidence(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder of evidence.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Check a folder of evidence from nothing but its files."""
    _check(folder, as_json=as_json)


def _check(folder: Path, *, as_json: bool) -> None:
    """Check a folder and say what it proves; ends with exit code 1 when it does not."""
    with show_spinner(f"Checking the evidence in {folder}", is_quiet=as_json):
        files = audit_evidence.read_evidence(folder)
        problems = evidence_folder.check_folder(files)
    named = (
        []
        if problems
        else list(event_actors.list_event_actors(evidence_folder.read_folder_events(files)))
    )
    if as_json:
        terminal_output.print_json(
            {
                "folder": str(folder),
                "is_good": not problems,
                "problems": problems,
                "actors": named,
            }
        )
    elif not problems:
        terminal_output.print_line(
            f"{folder}: every part is there, unchanged, and agrees with every other."
        )
    for actor in [] if as_json else named:
        terminal_output.print_line(f"  {event_actors.describe_actor(actor)}")
    for problem in [] if as_json else problems:
        terminal_output.print_line(f"{problem.artifact}: {problem.message} [{problem.code}]")
    if problems:
        raise typer.Exit(ExitCode.FAILED)


def _check_projection(projection: str) -> str:
    if projection not in {ALL, *SURFACES}:
        raise CliError(
            f"There is no projection {projection!r}.",
            way_out=f"One of {', '.join((ALL, *SURFACES))}",
            exit_code=ExitCode.USAGE,
        )
    return projection


def build_no_payloads_error(execution_id: str) -> CliError:
    """Build the error for a run in this process, which has nothing that proves it."""
    return CliError(
        f"Execution {execution_id} ran with -r local, which keeps neither payloads nor live rows.",
        way_out="Run it in a stack to prove it: noetl up, noetl run FILE",
        exit_code=ExitCode.USAGE,
    )


def _build_execution_query(planner: PlannerClient, execution_id: str) -> dict[str, str]:
    if not execution_id.isdigit():
        raise CliError(
            f"{execution_id!r} is not an execution id.",
            way_out="List them with: noetl ls",
            exit_code=ExitCode.USAGE,
        )
    return {"execution_id": execution_id, **client.get_owner(planner)}
