"""The event stream of one execution: read within limits, resumed after a lost connection."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct
from urllib3 import Timeout
from urllib3.exceptions import HTTPError

from noetl_cli.errors import CliError
from noetl_cli.planner import client
from noetl_cli.planner.client import PlannerClient
from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import StepProgress

LINE_BYTES_MAX = 8 * 1024 * 1024


class StreamMessage(Struct, frozen=True, kw_only=True):
    """One message; a heartbeat has no data."""

    event: str = "message"
    data: str | None = None
    message_id: str | None = None


class LineTooLongError(Exception):
    """The sender does not speak server-sent events."""


def parse_messages(chunks: Iterable[bytes]) -> Iterator[StreamMessage]:
    """Yield messages, comments as heartbeats among them."""
    fields: dict[str, str] = {}
    data: list[str] = []
    for line in _split_lines(chunks):
        if line.startswith(":"):
            yield StreamMessage()
            continue
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            else:
                fields[name] = value
            continue
        if data or "event" in fields:
            yield StreamMessage(
                event=fields.get("event", "message"),
                data="\n".join(data),
                message_id=fields.get("id"),
            )
        fields, data = {}, []


def _split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Cut at line feeds only: JSON may hold every other line separator that Unicode knows."""
    line_start = b""
    for chunk in chunks:
        *whole, line_start = (line_start + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")
        if len(line_start) > LINE_BYTES_MAX:
            raise LineTooLongError(f"a line of more than {LINE_BYTES_MAX} bytes")


# Heartbeats come every second: several missing ones mean that the connection is dead.
SILENCE_S = 10.0
PATIENCE_S = 60.0
REST_FIRST_S = 0.2
REST_MAX_S = 2.0
END, PROGRESS = "end", "progress"
_UNAVAILABLE = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.BAD_GATEWAY})

EventView = dict[str, Any]


class ConnectionLostError(Exception):
    """The stream broke off before the execution ended; the planner may be back in a moment."""


class ExecutionStream:
    """One execution, followed from a version on."""

    def __init__(
        self,
        client: PlannerClient,
        execution_id: str,
        *,
        after: int = 0,
    ) -> None:
        self._client = client
        self._execution_id = execution_id
        self._tell: Callable[[str], None] = _ignore_notice
        self._after = after
        self._patience_s = PATIENCE_S
        self._lost_at: float | None = None
        self._rest_s = REST_FIRST_S

    def read_events(self, tell: Callable[[str], None]) -> Iterator[EventView | StepProgress | None]:
        """Yield events in order, and None whenever there is time to look at the clock.

        Between them stands how far tasks are.

        Called again, it goes on after the last event that was taken.
        """
        self._tell = tell
        while True:
            try:
                yield from self._read_connection()
            except ConnectionLostError as error:
                self._note_lost(str(error))
            else:
                return
            yield None
            time.sleep(self._rest_s)
            self._rest_s = min(self._rest_s * 2, REST_MAX_S)

    def _read_connection(self) -> Iterator[EventView | StepProgress | None]:
        """Follow one connection until the execution ends; raises `ConnectionLostError`."""
        path = f"/api/executions/{client.escape_segment(self._execution_id)}/stream?progress=true"
        for message in read_messages(self._client, path, after=str(self._after)):
            self._note_connected()
            if message.event == END:
                return
            if message.data is None:
                yield None
                continue
            if message.event == PROGRESS:
                yield from _read_progress(message.data)
                continue
            try:
                view = codec.decode_as(message.data, EventView)
            except msgspec.DecodeError as error:
                raise ConnectionLostError(str(error)) from error
            yield view
            self._after = int(view["version"])
        raise ConnectionLostError("the stream ended early")

    def _note_connected(self) -> None:
        if self._lost_at is not None:
            self._tell("connected again")
        self._lost_at, self._rest_s = None, REST_FIRST_S

    def _note_lost(self, reason: str) -> None:
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at = now
            self._tell(f"lost the planner at {self._client.url}; trying again")
            return
        if now - self._lost_at > self._patience_s:
            raise CliError(
                f"No planner has answered at {self._client.url} for {self._patience_s:g} s "
                f"({reason}). The execution is durable and goes on when the planner does.",
                way_out=f"noetl run --attach {self._execution_id}",
            )


def _read_progress(data: str) -> Iterator[StepProgress]:
    """Read progress; what a newer planner says in another form is not shown."""
    with suppress(msgspec.DecodeError):
        yield codec.decode_as(data, StepProgress)


def read_messages(planner: PlannerClient, path: str, *, after: str) -> Iterator[StreamMessage]:
    """Read one connection from the message after `after`; raises `ConnectionLostError`."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
    timeout = Timeout(connect=SILENCE_S / 2, read=SILENCE_S)
    try:
        with planner.open_stream(path, headers=headers, timeout=timeout) as answer:
            if answer.status in _UNAVAILABLE:
                raise ConnectionLostError(f"the planner answered {answer.status}")
            if not client.is_success(answer):
                raise client.parse_refusal(answer)
            yield from parse_messages(client.read_chunks(answer))
    except (HTTPError, LineTooLongError) as error:
        raise ConnectionLostError(str(error)) from error


def _ignore_notice(text: str) -> None:
    del text
