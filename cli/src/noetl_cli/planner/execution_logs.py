"""Prints the log lines of an execution's tasks: those so far, or each as it arrives."""

import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct, structs

from noetl_cli import terminal_output
from noetl_cli.errors import CliError, ExitCode
from noetl_cli.planner import client, execution_stream
from noetl_cli.planner.client import PlannerClient
from noetl_cli.planner.execution_stream import END, PATIENCE_S, REST_MAX_S, ConnectionLostError
from noetl_contracts import codec

PAGE_LINES = 5000
# An execution and a step.
_ARGUMENTS_MAX = 2

LineView = dict[str, Any]


class LinesWanted(Struct, frozen=True, kw_only=True):
    """What a line must have; the planner looks for it."""

    text: str | None = None
    stream: str | None = None
    attempt: int | None = None


ALL_LINES = LinesWanted()


class LogsRequest(Struct, frozen=True, kw_only=True):
    """Which log lines to print, and how; `lines` is how many of the last ones, None is all."""

    execution_id: str
    step: str | None
    wanted: LinesWanted
    lines: int | None
    follow: bool
    as_json: bool

    @property
    def query(self) -> dict[str, Any]:
        """Return what the planner is asked for."""
        return {"step": self.step, **structs.asdict(self.wanted)}

    @property
    def stream_address(self) -> str:
        """Return the address of the log lines at the planner."""
        return f"/api/executions/{client.escape_segment(self.execution_id)}/logs"


class LogPrinter:
    """Prints each line once: after a broken connection the stream may repeat lines."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._sequence_by_log: dict[str, int] = {}

    def skip_line(self, line: LineView) -> bool:
        """Leave out a line, and those before it in its log; False when it was left out before."""
        log, sequence = str(line["log"]), int(line["sequence"])
        latest = self._sequence_by_log.get(log, 0)
        self._sequence_by_log[log] = max(sequence, latest)
        return sequence > latest or sequence == 0

    def print_line(self, line: LineView) -> None:
        """Write a line, unless it was written before."""
        if not self.skip_line(line):
            return
        if self._as_json:
            terminal_output.print_json(line)
        else:
            terminal_output.print_line(format_log_line(line))


def format_log_line(line: LineView) -> str:
    """Write a line for people: when, where, which level, and its text."""
    place = line["step"]
    # The only task of a step is called after it.
    if line["task"] not in ("", place, f"{place}_task"):
        place += f"/{line['task']}"
    if line["unit"] not in ("", "step"):
        place += f" {line['unit']}"
    if line["row_index"] is not None:
        place += f" row {line['row_index']}"
    tries = f"{line['attempt']}.{line['task_attempt']}"
    kind = line["level"] or line["stream"]
    # A line of the log is one line of the terminal, also when it holds breaks.
    text = line["text"].replace("\r", "\\r").replace("\n", "\\n")
    return f"{line['at'][11:23]} {place} #{tries} {kind}: {text}"


def parse_logs_request(
    names: list[str],
    *,
    wanted: LinesWanted = ALL_LINES,
    lines: int | None,
    follow: bool,
    as_json: bool,
) -> LogsRequest:
    """Read an execution and a step; raises `CliError` for more."""
    if len(names) > _ARGUMENTS_MAX:
        raise CliError(
            "Logs are of one execution, and of one of its steps at most.",
            way_out="noetl logs ID [STEP]",
            exit_code=ExitCode.USAGE,
        )
    step = names[1] if len(names) == _ARGUMENTS_MAX else None
    return LogsRequest(
        execution_id=names[0],
        step=step,
        wanted=wanted,
        lines=lines,
        follow=follow,
        as_json=as_json,
    )


def show_logs(logs_request: LogsRequest, server: str | None) -> None:
    """Print what is there; with `execution_stream` go on until the execution has ended."""
    printer = LogPrinter(as_json=logs_request.as_json)
    with client.open_client(server) as planner:
        after, note, count = "", "", 0
        latest: deque[LineView] = deque()
        for page in _read_pages(planner, logs_request):
            after = page["next_after"]
            note = page.get("note", "")
            count += len(page["lines"])
            for line in page["lines"]:
                latest.append(line)
                if logs_request.lines is None:
                    printer.print_line(latest.popleft())
                elif len(latest) > logs_request.lines:
                    printer.skip_line(latest.popleft())
        for line in latest:
            printer.print_line(line)
        if note:
            terminal_output.print_note(f"{note[0].upper()}{note[1:]}.")
        elif not count and logs_request.wanted != ALL_LINES:
            terminal_output.print_note("No line is like that.")
        if logs_request.follow:
            for line in _follow_lines(planner, logs_request, after):
                printer.print_line(line)


def _read_pages(planner: PlannerClient, logs_request: LogsRequest) -> Iterator[dict[str, Any]]:
    after, has_more = None, True
    while has_more:
        page = planner.get(
            logs_request.stream_address, **logs_request.query, after=after, limit=PAGE_LINES
        )
        yield page
        after, has_more = page["next_after"] or None, page["has_more"]


def _follow_lines(
    planner: PlannerClient, logs_request: LogsRequest, after: str
) -> Iterator[LineView]:
    """Yield lines until the execution has ended, through broken connections."""
    lost_at: float | None = None
    while True:
        try:
            for message in _read_messages(planner, logs_request, after):
                lost_at = None
                if message.event == END:
                    return
                after = message.message_id or after
                yield from codec.decode_json(message.data or "{}").get("lines", ())
        except (ConnectionLostError, msgspec.DecodeError) as problem:
            lost_at = lost_at or time.monotonic()
            if time.monotonic() - lost_at > PATIENCE_S:
                raise CliError(
                    f"No planner has answered at {planner.url} for {PATIENCE_S:g} s ({problem}).",
                    way_out=f"noetl logs {logs_request.execution_id} -f",
                ) from problem
        time.sleep(REST_MAX_S / 2)


def _read_messages(
    planner: PlannerClient, logs_request: LogsRequest, after: str
) -> Iterator[execution_stream.StreamMessage]:
    path = client.add_query(f"{logs_request.stream_address}/stream", logs_request.query)
    for message in execution_stream.read_messages(planner, path, after=after):
        if message.data is not None:
            yield message
