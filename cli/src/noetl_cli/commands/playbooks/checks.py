"""`noetl checks`: what checks of datasets have found, run after run, or in one execution."""

from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.planner import client


def checks(  # noqa: PLR0913 - one parameter for each option of the command line
    path: Annotated[
        str | None, typer.Argument(metavar="[PLAYBOOK]", help="A registered playbook.")
    ] = None,
    *,
    execution: Annotated[
        str | None, typer.Option("--execution", help="Of this execution alone.")
    ] = None,
    at: Annotated[
        int | None,
        typer.Option("--at", min=1, help="Known at this position of the execution."),
    ] = None,
    step: Annotated[str | None, typer.Option("--step", help="Only of this step.")] = None,
    dataset: Annotated[
        str | None, typer.Option("--dataset", help="Only of this input, or of output.")
    ] = None,
    broken: Annotated[bool, typer.Option("--broken", help="Only checks that do not hold.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=200, help="How many executions.")
    ] = 20,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Show what the checks of a playbook's datasets have found, run after run."""
    if (path is None) == (execution is None) or (at is not None and execution is None):
        raise CliError(
            "Name a playbook, or one execution of which --at is a position.",
            way_out="noetl checks PLAYBOOK, or noetl checks --execution ID --at POSITION",
            exit_code=ExitCode.USAGE,
        )
    with client.open_client(server) as planner:
        if execution is not None:
            answer = planner.get(
                f"/api/executions/{client.escape_segment(execution)}/checks", step=step, version=at
            )
        else:
            answer = planner.get(
                "/api/checks",
                path=path,
                step=step,
                dataset=dataset,
                broken="true" if broken else None,
                limit=limit,
            )
    if execution is not None:
        answer["checks"] = [
            check
            for check in answer["checks"]
            if (dataset is None or check["dataset"] in {dataset, f"input '{dataset}'"})
            and not (broken and check["is_met"])
        ]
    if as_json:
        terminal_output.print_json(answer)
        return
    _print_checks(answer, is_broken=broken)


def _print_checks(answer: dict[str, Any], *, is_broken: bool) -> None:
    place = (
        f"{answer['executions']} executions" if "executions" in answer else answer["execution_id"]
    )
    terminal_output.print_rows(
        ("STEP ENDED", "EXECUTION", "STEP", "DATASET", "CHECK", "HOLDS", "FOUND"),
        [_format_check(check) for check in answer["checks"]],
        nothing=f"No {'broken ' if is_broken else ''}checks in {place}.",
    )
    if answer.get("next_before"):
        terminal_output.print_note(
            f"Of the latest {answer['executions']} executions. For older ones raise --limit."
        )
    if answer.get("more"):
        terminal_output.print_note("There are older ones than these: choose one step with --step.")


def _format_check(check: dict[str, Any]) -> tuple[str, ...]:
    failed_rows, measured = check["failed_rows"], check["measured"]
    if failed_rows is None:
        found = "nothing" if measured is None else str(measured)
    else:
        noun = "row breaks" if failed_rows == 1 else "rows break"
        found = f"{failed_rows:,} {noun} it" if failed_rows else ""
    return (
        check["at"][:19].replace("T", " "),
        check["execution_id"],
        check["step"],
        check["dataset"],
        check["check"],
        "yes" if check["is_met"] else "NO",
        found,
    )
