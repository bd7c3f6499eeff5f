"""`noetl lineage`: which step read and wrote what."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server
from noetl_cli.files import output_file
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient
from noetl_contracts import codec

_DIGEST_SHOWN = 12


def lineage(
    execution_id: ExecutionArgument,
    *,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write the events here, one a line.")
    ] = None,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Show what steps read and wrote, or export it as OpenLineage events."""
    with client.open_client(server) as planner:
        events = _list_events(planner, execution_id)
        if output is not None:
            count = _write_events(output, events)
            terminal_output.print_line(f"{output}: {count} OpenLineage events.")
        elif as_json:
            for event in events:
                terminal_output.print_json(event)
        else:
            rows = [_format_event_row(event) for event in events]
            head = ("TIME", "EVENT", "JOB", "READS", "WRITES")
            terminal_output.print_rows(
                head, rows, nothing=f"Nothing is told of execution {execution_id} yet."
            )


def _list_events(planner: PlannerClient, execution_id: str) -> Iterator[Any]:
    after = 0
    while True:
        page = planner.get(
            f"/api/executions/{client.escape_segment(execution_id)}/lineage", after=after
        )
        yield from page["events"]
        after = page["next_after"]
        if not page["has_more"]:
            return


def _write_events(output: Path, events: Iterator[Any]) -> int:
    lines = (codec.encode_json(event) + b"\n" for event in events)
    return output_file.write_output_file(output, lines)


def _format_event_row(event: Any) -> tuple[str, ...]:
    error = event["run"]["facets"].get("errorMessage", {}).get("message", "")
    return (
        event["eventTime"],
        event["eventType"],
        event["job"]["name"],
        ", ".join(_format_dataset_name(item) for item in event["inputs"]),
        ", ".join(_format_dataset_name(output) for output in event["outputs"]) or error,
    )


def _format_dataset_name(dataset: Any) -> str:
    version = dataset["facets"].get("version", {}).get("datasetVersion", "")
    at = f"@{version[:_DIGEST_SHOWN]}" if version else ""
    name = dataset["name"]
    is_locator = name.startswith("noetl://")
    return f"{name if is_locator else dataset['namespace'] + '/' + name.lstrip('/')}{at}"
