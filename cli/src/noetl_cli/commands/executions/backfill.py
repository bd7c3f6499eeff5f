"""`noetl backfill`: run a playbook for ranges of its sources."""

import getpass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from noetl_chassis.clock import SystemClock
from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.files import command_inputs
from noetl_cli.planner import backfill_ranges, client
from noetl_cli.planner.backfill_runs import BackfillRuns, RangeEnd
from noetl_cli.planner.client import PlannerClient, PlannerRefusal
from noetl_contracts import codec
from noetl_contracts.commands import state_values
from noetl_contracts.commands.state_values import StateType, StateValueError
from noetl_contracts.status import ExecutionStatus

_STATE = "/api/state/value"
_DIGEST_CHARACTERS = 16


def backfill(  # noqa: PLR0913 - one parameter for each option of the command line
    path: Annotated[str, typer.Argument(metavar="PLAYBOOK", help="A registered playbook.")],
    *,
    since: Annotated[str, typer.Option("--from", help="Where the first range begins.")],
    until: Annotated[str, typer.Option("--to", help="Before which the last range ends.")],
    every: Annotated[
        str | None, typer.Option("--every", help="How long a range is: 1d, 6h, or a number.")
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, max=100, help="How many run at once.")
    ] = 1,
    move_state: Annotated[
        bool, typer.Option("--move-state", help="At the end, move the states on to --to.")
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", help="Another name runs ranges again that are done."),
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="An input as name=value; repeat it.")
    ] = None,
    payload: Annotated[
        Path | None, typer.Option("--payload", help="Inputs as JSON or YAML; - is stdin.")
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Run a playbook for ranges of its sources; the same command goes on where it stopped.

    After a range that failed no other begins. Ctrl-C leaves what runs running. The states of the
    playbook stay where they are, unless --move-state moves them.

    Exit codes: 0 all ranges completed, 1 one failed, 2 wrong usage, 3 stopped.
    """
    ranges = backfill_ranges.list_ranges(since, until, every)
    if move_state:
        _check_end(until)
    inputs = command_inputs.read_inputs(payload=payload, sets=sets or [], sets_json=[])
    progress = _RangeProgress(total=len(ranges), as_json=as_json)
    with client.open_client(server) as planner:
        runs = BackfillRuns(
            planner,
            body={"path": path, "workload": inputs},
            key=_build_key(path, inputs, name),
            parallel=parallel,
            show_end=progress.show_end,
        )
        try:
            runs.run_ranges(ranges)
        except KeyboardInterrupt:
            progress.note_stop(runs)
            raise typer.Exit(ExitCode.CANCELLED) from None
        if runs.has_failed:
            progress.note_failure(runs)
            raise typer.Exit(ExitCode.FAILED)
        progress.note_repeated(runs)
        if move_state:
            _move_states(planner, path, until, reason=f"backfill from {since} to {until}")


class _RangeProgress:
    """Prints each range as it ends, and what is left."""

    def __init__(self, *, total: int, as_json: bool) -> None:
        self._total = total
        self._as_json = as_json
        self._count = 0

    def show_end(self, end: RangeEnd) -> None:
        self._count += 1
        if self._as_json:
            record = {
                "since": end.range.since,
                "until": end.range.until,
                "status": str(end.status),
                "execution_id": end.execution_id,
                "was_done": end.was_done,
            }
            terminal_output.print_json(record)
            return
        before = " before" if end.was_done else ""
        terminal_output.print_line(
            f"{self._count} of {self._total}: {end.range.since} to {end.range.until} "
            f"{str(end.status).lower()}{before}, execution {end.execution_id}"
        )

    def note_stop(self, runs: BackfillRuns) -> None:
        terminal_output.print_note(
            f"Stopped: {self._count} of {self._total} ranges have ended, {len(runs.running)} run "
            "on. The same command goes on."
        )

    def note_failure(self, runs: BackfillRuns) -> None:
        failed = [end for end in runs.ended if end.status is not ExecutionStatus.COMPLETED]
        for end in failed:
            terminal_output.print_note(f"See why: noetl status {end.execution_id}")
        pending_count = self._total - self._count
        terminal_output.print_note(
            f"{len(failed)} failed, {pending_count} not begun. The same command begins both again."
        )

    def note_repeated(self, runs: BackfillRuns) -> None:
        earlier_count = sum(end.was_done for end in runs.ended)
        if earlier_count:
            terminal_output.print_note(
                f"{earlier_count} of {self._total} ranges were done before: "
                "--name NAME runs them again."
            )


def _build_key(path: str, inputs: dict[str, Any], name: str | None) -> str:
    """Name a backfill: the same playbook with the same inputs runs no range twice."""
    identity = codec.encode_canonical([path.strip("/"), inputs, name])
    return f"backfill/{codec.digest_hex(identity)[:_DIGEST_CHARACTERS]}"


def _check_end(until: str) -> None:
    """Refuse to move states to where rows may still come."""
    end = backfill_ranges.parse_value("--to", until)
    now = state_values.parse_state_value(SystemClock().now(), StateType.TIMESTAMP)
    if end.type is not StateType.TIMESTAMP or state_values.is_later(end, now):
        raise CliError(
            f"--move-state cannot move states to {until}: rows before it may still come.",
            way_out="Name a moment that has passed, or use: noetl state set",
            exit_code=ExitCode.USAGE,
        )


def _move_states(planner: PlannerClient, path: str, until: str, *, reason: str) -> None:
    """Move the states of a playbook on to a value; one that is further already stays."""
    model = planner.get(f"/api/catalog/{quote(path.strip('/'))}")["model"]
    for step in model["workflow"]:
        incremental = step.get("incremental")
        if incremental is None:
            continue
        name = incremental["from"].removeprefix("state.")
        present = _find_state(planner, path, name)
        body = {
            "path": path,
            "name": name,
            "value": until,
            "who": getpass.getuser(),
            "reason": reason,
            "revision": 0 if present is None else present["revision"],
        }
        if present is not None and not _is_ahead(until, present):
            terminal_output.print_note(f"state {name} stays at {present['value']}")
            continue
        moved = planner.put(_STATE, body)
        terminal_output.print_note(f"state {name} moved to {moved['value']}")


def _find_state(planner: PlannerClient, path: str, name: str) -> dict[str, Any] | None:
    try:
        answer: dict[str, Any] = planner.get(_STATE, path=path, name=name)
    except PlannerRefusal as refusal:
        if refusal.status == HTTPStatus.NOT_FOUND:
            return None
        raise
    return answer


def _is_ahead(until: str, present: dict[str, Any]) -> bool:
    type_ = StateType(present["type"])
    try:
        return state_values.is_later(
            state_values.parse_state_value(until, type_),
            state_values.parse_state_value(present["value"], type_),
        )
    except StateValueError as problem:
        raise CliError(f"--to: {problem}.", exit_code=ExitCode.USAGE) from problem
