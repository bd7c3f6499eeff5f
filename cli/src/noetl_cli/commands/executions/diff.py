"""`noetl diff`: two runs side by side."""

from enum import StrEnum
from typing import Annotated, Any

import typer
from msgspec import UNSET

from noetl_cli import terminal_output
from noetl_cli.commands.options import Server
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.local import history
from noetl_cli.planner import client, run_difference
from noetl_cli.planner.client import PlannerClient
from noetl_cli.planner.run_difference import ComparedStep, RunDifference
from noetl_contracts import codec

_VALUE_SHOWN = 60
_DIGEST_SHOWN = 12


class DiffForm(StrEnum):
    """How a comparison is printed."""

    TABLE = "table"
    JSON = "json"


def diff(
    execution_id: Annotated[str, typer.Argument(metavar="ID", help="The first run.")],
    other_id: Annotated[str, typer.Argument(metavar="ID", help="The second run.")],
    *,
    output: Annotated[
        DiffForm, typer.Option("--output", help="Tables, or one line of JSON.")
    ] = DiffForm.TABLE,
    server: Server = None,
) -> None:
    """Compare two runs: inputs, steps and results; exit code 0 alike, 1 different, 2 trouble.

    noetl diff ID ID, noetl diff ID ID --output json
    """
    try:
        difference = _compare_runs(execution_id, other_id, server)
    except CliError as failure:
        # 1 says that they differ, as that of `diff` does.
        failure.exit_code = ExitCode.USAGE
        raise
    if output is DiffForm.JSON:
        terminal_output.print_json(difference)
    else:
        _print_tables(difference)
    if not difference.is_alike:
        raise typer.Exit(ExitCode.FAILED)


def _compare_runs(one: str, other: str, server: str | None) -> RunDifference:
    for execution_id in (one, other):
        if history.find_history(execution_id, server=server) is not None:
            raise CliError(
                f"Execution {execution_id} ran with -r local, which keeps no results.",
                way_out="Run it in a stack to compare it: noetl up, noetl run FILE",
            )
    with client.open_client(server) as planner:
        moments = [_get_moment(planner, execution_id) for execution_id in (one, other)]
        results = [planner.get(f"/api/result/{moment['execution_id']}/list") for moment in moments]
    difference = run_difference.compare_runs(moments, results)
    longer = [moment["execution_id"] for moment in moments if moment["more_runs"]]
    if longer and difference.is_alike:
        raise CliError(
            f"Execution {longer[0]} has more runs of steps than one answer holds: those that it "
            "holds are alike, and no more can be said.",
            way_out=f"Compare its events: noetl events {longer[0]}",
        )
    return difference


def _get_moment(planner: PlannerClient, execution_id: str) -> Any:
    return planner.get(f"/api/executions/{client.escape_segment(execution_id)}/moment")


def _print_tables(difference: RunDifference) -> None:
    for number, run in (("1", difference.one), ("2", difference.other)):
        duration = "" if run["duration"] is None else f" after {run['duration']:.1f} s"
        terminal_output.print_line(
            f"{number}: {run['execution_id']}  {run['path']}  "
            f"{terminal_output.format_version(run['playbook_version'])}  "
            f"{run['status']}{duration}"
        )
    if difference.inputs:
        terminal_output.print_rows(
            ("INPUT", "1", "2"),
            [
                (item.name, _shorten_value(item.one), _shorten_value(item.other))
                for item in difference.inputs
            ],
            nothing="",
        )
    terminal_output.print_rows(
        ("STEP", "1", "2", "RESULT 1", "RESULT 2", "DIFFERS IN"),
        [_build_step_row(step) for step in difference.steps],
        nothing="Neither run had begun a step.",
    )
    if difference.is_alike:
        terminal_output.print_line("alike")


def _build_step_row(step: ComparedStep) -> tuple[str, ...]:
    return (
        step.step,
        *("-" if end is None else end["status"] for end in (step.one, step.other)),
        *((digest or "-")[:_DIGEST_SHOWN] for digest in (step.one_digest, step.other_digest)),
        "; ".join(step.differences) or "nothing",
    )


def _shorten_value(value: Any) -> str:
    text = "-" if value is UNSET else codec.encode_text(value)
    return text if len(text) <= _VALUE_SHOWN else f"{text[: _VALUE_SHOWN - 1]}…"
