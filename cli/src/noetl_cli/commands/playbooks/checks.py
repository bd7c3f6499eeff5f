"""`noetl checks`: what the checks of a playbook's datasets have found, run after run."""

from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, Server
from noetl_cli.planner import client


def checks(
    path: Annotated[str, typer.Argument(metavar="PLAYBOOK", help="A registered playbook.")],
    *,
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
    with client.open_client(server) as planner:
        answer = planner.get(
            "/api/checks",
            path=path,
            step=step,
            dataset=dataset,
            broken="true" if broken else None,
            limit=limit,
        )
    if as_json:
        terminal_output.print_json(answer)
        return
    terminal_output.print_rows(
        ("STEP ENDED", "EXECUTION", "STEP", "DATASET", "CHECK", "HOLDS", "FOUND"),
        [_format_check(check) for check in answer["checks"]],
        nothing=f"No {'broken ' if broken else ''}checks in {answer['executions']} executions.",
    )
    if answer["next_before"]:
        terminal_output.print_note(
            f"Of the latest {answer['executions']} executions. For older ones raise --limit."
        )


def _format_check(check: dict[str, Any]) -> tuple[str, ...]:
    failed_rows, measured = check["failed_rows"], check["measured"]
    if failed_rows is None:
        found = "nothing" if measured is None else str(measured)
    else:
        found = f"{failed_rows:,} rows break it" if failed_rows else ""
    return (
        check["at"][:19].replace("T", " "),
        check["execution_id"],
        check["step"],
        check["dataset"],
        check["check"],
        "yes" if check["is_met"] else "NO",
        found,
    )
