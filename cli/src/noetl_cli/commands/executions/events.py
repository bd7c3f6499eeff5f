"""`noetl events`: an execution's history, event by event."""

from typing import Annotated, Any

import typer

from noetl_cli import terminal_output
from noetl_cli.audit import administration_log
from noetl_cli.commands.options import AsJson, ExecutionArgument, Server
from noetl_cli.local import history
from noetl_cli.planner import client
from noetl_cli.terminal.progress_tracker import describe_note, format_attempts, format_error

PAGE = 500
_DETAIL_NAMES = ("frame_id", "command_id", "item_index", "row_count", "worker_id", "reason")


def events(
    execution_id: ExecutionArgument,
    *,
    since: Annotated[int, typer.Option("--since", min=0, help="Only after this version.")] = 0,
    server: Server = None,
    as_json: AsJson = False,
) -> None:
    """Print events in order, one a line.

    A line begins with the version, when it happened and when the ledger took it, both in UTC.

    Those of a run with -r local are read from the folder that keeps the latest such runs.
    """
    local_history = history.find_history(execution_id, server=server)
    if local_history is not None:
        for view in history.read_views(local_history, after=since):
            _print_event(execution_id, view, as_json=as_json)
        return
    address = f"/api/executions/{client.escape_segment(execution_id)}/events"
    with client.open_client(server) as planner:
        after, has_more = since, True
        while has_more:
            page = planner.get(address, after=after, limit=PAGE)
            for view in page["events"]:
                _print_event(page["execution_id"], view, as_json=as_json)
            after, has_more = page["next_after"], page["has_more"]


def _print_event(execution_id: str, view: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        terminal_output.print_json({"execution_id": execution_id, **view})
    else:
        terminal_output.print_line(terminal_output.flatten_text(format_event(view)))


def format_event(view: dict[str, Any]) -> str:
    """Write an event for people."""
    context = view["context"]
    details = [f"{name}={context[name]}" for name in _DETAIL_NAMES if context.get(name) is not None]
    if view["error"]:
        details.append(f"error={format_error(view['error'])}")
    if view.get("actor"):
        details.append(f"by {administration_log.format_actor(view['actor'])}")
    details += [f"note {describe_note(note)}" for note in context.get("notes") or ()]
    if context.get("tries"):
        details.append(f"after {format_attempts(context['tries'])}")
    # Those of tasks are told by what ends them: this one counts how often a command was sent.
    if (context.get("attempt") or 1) > 1 and context.get("command_id") is not None:
        details.append(f"sent={context['attempt']}")
    happened, stored = _format_time(view.get("event_time")), _format_time(view.get("ingest_time"))
    step = view["node_name"] or ""
    return (
        f"{view['version']:>6} {happened} {stored} {view['event_type']} {step} {' '.join(details)}"
    )


def _format_time(instant: str | None) -> str:
    """Cut an instant down to its time of day in milliseconds; `-` where there is none."""
    return f"{instant[11:23] if instant else '-':<12}"
