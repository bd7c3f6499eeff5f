"""`noetl diff`: two runs side by side, as the planner compares them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import Server
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.local import history
from noetl_cli.planner import client
from noetl_contracts import codec

Answer = Mapping[str, Any]

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
        difference = _get_difference(execution_id, other_id, server)
    except CliError as failure:
        # 1 says that they differ, as that of `diff` does.
        failure.exit_code = ExitCode.USAGE
        raise
    if output is DiffForm.JSON:
        terminal_output.print_json(difference)
    else:
        _print_tables(difference)
    if not difference["is_alike"]:
        raise typer.Exit(ExitCode.FAILED)


def _get_difference(one: str, other: str, server: str | None) -> Answer:
    for execution_id in (one, other):
        if history.find_history(execution_id, server=server) is not None:
            raise CliError(
                f"Execution {execution_id} ran with -r local, which keeps no results.",
                way_out="Run it in a stack to compare it: noetl up, noetl run FILE",
            )
    path = f"/api/executions/{client.escape_segment(one)}/difference"
    with client.open_client(server) as planner:
        difference: Answer = planner.get(path, **{"with": other})
    if difference["is_alike"] is None:
        raise CliError(
            "What was compared is alike, and no more can be said. Not compared: "
            f"{'; '.join(difference['not_compared'])}.",
            way_out=f"Compare the events: noetl events {one}",
        )
    return difference


def _print_tables(difference: Answer) -> None:
    for number, run in (("1", difference["one"]), ("2", difference["other"])):
        duration = "" if run["duration"] is None else f" after {run['duration']:.1f} s"
        terminal_output.print_line(
            f"{number}: {run['execution_id']}  {run['path']}  "
            f"{terminal_output.format_version(run['playbook_version'])}  "
            f"{run['status']}{duration}"
        )
    if difference["inputs"]:
        terminal_output.print_rows(
            ("INPUT", "1", "2"),
            [
                (item["name"], _show_input(item, "one"), _show_input(item, "other"))
                for item in difference["inputs"]
            ],
            nothing="",
        )
    terminal_output.print_rows(
        ("STEP", "1", "2", "RESULT 1", "RESULT 2", "DIFFERS IN"),
        [_build_step_row(step) for step in difference["steps"]],
        nothing="Neither run had begun a step.",
    )
    for left_out in difference["not_compared"]:
        terminal_output.print_note(f"Not compared: {left_out}.")
    if difference["is_alike"]:
        terminal_output.print_line("alike")


def _build_step_row(step: Answer) -> tuple[str, ...]:
    return (
        step["step"],
        *("-" if end is None else end["status"] for end in (step["one"], step["other"])),
        *((step[name] or "-")[:_DIGEST_SHOWN] for name in ("one_digest", "other_digest")),
        "; ".join(step["differences"]) or "nothing",
    )


def _show_input(item: Answer, side: str) -> str:
    """Write an input of one run; it is missing where the run has none."""
    text = codec.encode_text(item[side]) if side in item else "-"
    return text if len(text) <= _VALUE_SHOWN else f"{text[: _VALUE_SHOWN - 1]}…"
