"""`noetl spark`: what Spark's own log says of a step."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import ExecutionArgument, LastStepArgument, Server
from noetl_cli.errors import CliError
from noetl_cli.files import output_file
from noetl_cli.local import history
from noetl_cli.planner import client, step_result
from noetl_cli.planner.client import PlannerClient
from noetl_cli.planner.step_result import PlannerResults
from noetl_contracts import codec

_KEY = "event_log"
_WINDOW = 1_000

app = typer.Typer(
    no_args_is_help=True,
    help="Print Spark's own log of a step whose task has `event_log: true`.",
)


@app.callback()
def show_spark() -> None:
    """Print Spark's own log of a step whose task has `event_log: true`."""


@app.command("log")
def show_log(
    execution_id: ExecutionArgument,
    step: LastStepArgument = None,
    *,
    save: Annotated[
        Path | None, typer.Option("--save", help="Write it there, for a history server of Spark.")
    ] = None,
    server: Server = None,
) -> None:
    """Print the events of a step whose task has `event_log: true`, one JSON object a line."""
    history.check_is_remote(execution_id, server=server)
    if save is not None:
        output_file.check_output_file(save)
    with client.open_client(server) as planner:
        source = PlannerResults(planner, execution_id)
        named = step_result.choose_step(source, execution_id, step)
        uri = _find_reference(step_result.read_first_rows(source, named, rows_max=1))
        if uri is None:
            raise CliError(
                f"No event log is kept of step {named!r}.",
                way_out="Set event_log: true on its task of kind spark, and rerun it.",
            )
        events = _iterate_events(planner, uri)
        if save is None:
            for event in events:
                terminal_output.print_json(event)
            return
        lines = (codec.encode_json(event) + b"\n" for event in events)
        output_file.write_output_file(save, lines)
    terminal_output.print_note(f"The events are in {save}.")


def _find_reference(result: step_result.StepResult) -> str | None:
    """Return the reference that a result, or the error of a failed step, shows."""
    error = result.error if isinstance(result.error, dict) else {}
    for value in (result.data, error.get("details")):
        about = value.get(_KEY) if isinstance(value, dict) else None
        if isinstance(about, dict) and isinstance(about.get("ref"), str):
            return str(about["ref"])
    return None


def _iterate_events(planner: PlannerClient, uri: str) -> Iterator[Any]:
    offset = 0
    while True:
        window = planner.get("/api/result/resolve", ref=uri, offset=offset, limit=_WINDOW)
        yield from window["data"]
        offset += _WINDOW
        if not window["has_next"]:
            return
