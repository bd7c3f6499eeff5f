"""`noetl items`: what became of each item of a loop."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any

import msgspec
import typer

from noetl_cli import terminal_output
from noetl_cli.commands.options import ExecutionArgument, Server
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient
from noetl_cli.terminal.progress_tracker import format_error

LIMIT = 100
PAGE_MAX = 1_000
_INPUT_SHOWN = 40
_ERROR_SHOWN = 100


class ItemState(StrEnum):
    """What may have become of an item."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ItemsForm(StrEnum):
    """How items are printed."""

    TABLE = "table"
    JSON = "json"


def items(  # noqa: PLR0913 - one parameter for each option of the command line
    execution_id: ExecutionArgument,
    step: Annotated[
        str | None,
        typer.Argument(metavar="STEP", help="The step of the loop; the only one by default."),
    ] = None,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="Those that failed alone.")] = False,
    state: Annotated[ItemState | None, typer.Option(help="Those in one state alone.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many at most.")] = LIMIT,
    everything: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
    after: Annotated[
        str, typer.Option(metavar="PLACE", help="Go on after a place that was told.")
    ] = "",
    output: Annotated[
        ItemsForm, typer.Option("--output", help="A table, or JSON with an item a line.")
    ] = ItemsForm.TABLE,
    server: Server = None,
) -> None:
    """Show what became of each item of a loop, and why items failed.

    noetl items ID, noetl items ID STEP --failed, noetl rerun ID --failed
    """
    chosen_state = _choose_state(state, failed=failed)
    with client.open_client(server) as planner:
        name = step if step is not None else _get_only_loop(planner, execution_id)
        pages = _ItemPages(planner, execution_id, name, chosen_state, after)
        bound = None if everything else limit
        if output is ItemsForm.JSON:
            for item in pages.read_items(bound):
                terminal_output.print_json(item)
        else:
            rows = [_format_item_row(item) for item in pages.read_items(bound)]
            head = ("INDEX", "STATE", "ATTEMPTS", "SECONDS", "INPUT", "ERROR")
            terminal_output.print_rows(head, rows, nothing="No such items.")
    pages.print_summary()


class _ItemPages:
    """Reads items page by page, as many as are wanted."""

    def __init__(
        self,
        planner: PlannerClient,
        execution_id: str,
        step: str,
        state: ItemState | None,
        after: str,
    ) -> None:
        self._planner = planner
        self._execution_id = execution_id
        self._step = step
        self._query = {} if state is None else {"state": str(state)}
        self._after = after
        self._page: dict[str, Any] = {}

    def read_items(self, count_max: int | None) -> Iterator[dict[str, Any]]:
        """Yield items, at most so many; the pages before and after them stay unread."""
        id_, step = client.escape_segment(self._execution_id), client.escape_segment(self._step)
        count = 0
        while count_max is None or count < count_max:
            page_size = PAGE_MAX if count_max is None else min(PAGE_MAX, count_max - count)
            self._page = self._planner.get(
                f"/api/executions/{id_}/items/{step}",
                after=self._after,
                limit=page_size,
                **self._query,
            )
            yield from self._page["items"]
            count += len(self._page["items"])
            self._after = self._page["next_after"]
            if not self._page["has_more"]:
                return

    def print_summary(self) -> None:
        """Say beside the output what there is in all, and how to read on."""
        counts = self._page.get("counts", {})
        total = counts.get("total")
        summary = [f"{counts[key]:,} {key}" for key in counts if key != "total" and counts[key]]
        if total is not None:
            terminal_output.print_note(
                f"{self._step}: {total:,} in all, {', '.join(summary) or 'none ended'}"
            )
        for text in self._page.get("notes", []):
            terminal_output.print_note(text)
        if self._page.get("has_more"):
            state = f" --state {self._query['state']}" if self._query else ""
            terminal_output.print_note(
                f"More follow: noetl items {self._execution_id} {self._step}{state} "
                f"--after {self._after}"
            )


def _choose_state(state: ItemState | None, *, failed: bool) -> ItemState | None:
    if failed and state not in (None, ItemState.FAILED):
        raise CliError(
            f"--failed and --state {state} exclude each other.",
            way_out="noetl items ID STEP --failed",
            exit_code=ExitCode.USAGE,
        )
    return ItemState.FAILED if failed else state


def _get_only_loop(planner: PlannerClient, execution_id: str) -> str:
    """Name the step of the only loop; raises `CliError` when there are others."""
    answer = planner.get(f"/api/executions/{client.escape_segment(execution_id)}/status")
    names = sorted({loop["step"] for loop in answer["loops"] if loop["mode"] != "reduce"})
    if len(names) == 1:
        return str(names[0])
    loops_text = f"there are loops of {', '.join(names)}" if names else "no loop of it began"
    raise CliError(
        f"Which loop is meant is not clear: {loops_text}.",
        way_out=f"noetl items {execution_id} STEP" if names else f"noetl status {execution_id}",
        exit_code=ExitCode.USAGE,
    )


def _format_item_row(item: dict[str, Any]) -> tuple[str, ...]:
    last = item["index"] + item["count"] - 1
    index = str(item["index"]) if item["count"] == 1 else f"{item['index']}-{last}"
    is_taken = item["taken_from"] is not None
    duration = item["duration"]
    return (
        index,
        item["state"] if item["record"] in ("item", "row") else f"{item['state']} {item['record']}",
        "taken over" if is_taken else str(item["attempts"]),
        "" if duration is None else f"{duration:.1f}",
        _shorten_text(_format_input(item), _INPUT_SHOWN),
        _shorten_text(_format_error(item), _ERROR_SHOWN),
    )


def _format_input(item: dict[str, Any]) -> str:
    if item["input_ref"] is not None:
        return f"{item['input_ref']['bytes']:,} bytes: {item['input_ref']['preview']}"
    if item["input_problem"] is not None:
        return f"({item['input_problem']})"
    if item["count"] > 1:
        return ""
    value = item["input"]
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _format_error(item: dict[str, Any]) -> str:
    if item["error"] is None:
        return ""
    some = ""
    if item["count"] > 1 and item["failed"]:
        some = f"{item['failed']} of {item['count']} rows failed; the first: "
    return some + format_error(item["error"])


def _shorten_text(text: str, characters: int) -> str:
    flat = terminal_output.flatten_text(text)
    return flat if len(flat) <= characters else f"{flat[: characters - 1]}…"
