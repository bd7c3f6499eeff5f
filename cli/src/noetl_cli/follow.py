"""Follows an execution's events through broken connections."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import msgspec
from urllib3 import Timeout
from urllib3.exceptions import HTTPError

from noetl_cli import client, sse
from noetl_cli.client import Client
from noetl_cli.failures import CliError
from noetl_contracts import codec
from noetl_contracts.step_progress import StepProgress

# Heartbeats come every second: several missing ones mean that the connection is dead.
SILENCE_S = 10.0
PATIENCE_S = 60.0
REST_FIRST_S = 0.2
REST_MAX_S = 2.0
END, PROGRESS = "end", "progress"
_UNAVAILABLE = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.BAD_GATEWAY})

EventView = dict[str, Any]


class AwayError(Exception):
    """The stream broke off before the execution ended; the planner may be back in a moment."""


class Following:
    """One execution, followed from a version on."""

    def __init__(
        self,
        client: Client,
        execution_id: str,
        *,
        after: int = 0,
    ) -> None:
        self._client = client
        self._execution_id = execution_id
        self._tell: Callable[[str], None] = _silence
        self._after = after
        self._patience_s = PATIENCE_S
        self._lost_at: float | None = None
        self._rest_s = REST_FIRST_S

    def events(self, tell: Callable[[str], None]) -> Iterator[EventView | StepProgress | None]:
        """Yield events in order, and None whenever there is time to look at the clock.

        Between them stands how far tasks are.

        Called again, it goes on after the last event that was taken.
        """
        self._tell = tell
        while True:
            try:
                yield from self._connected()
            except AwayError as error:
                self._lose(str(error))
            else:
                return
            yield None
            time.sleep(self._rest_s)
            self._rest_s = min(self._rest_s * 2, REST_MAX_S)

    def _connected(self) -> Iterator[EventView | StepProgress | None]:
        """Follow one connection until the execution ends; raises `AwayError`."""
        path = f"/api/executions/{client.escaped(self._execution_id)}/stream?progress=true"
        for message in read_messages(self._client, path, after=str(self._after)):
            self._find()
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
                raise AwayError(str(error)) from error
            yield view
            self._after = int(view["version"])
        raise AwayError("the stream ended early")

    def _find(self) -> None:
        if self._lost_at is not None:
            self._tell("connected again")
        self._lost_at, self._rest_s = None, REST_FIRST_S

    def _lose(self, reason: str) -> None:
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


def read_messages(planner: Client, path: str, *, after: str) -> Iterator[sse.Message]:
    """Read one connection of a stream, from behind the message `after`; raises `AwayError`."""
    headers = {"Accept": "text/event-stream", **({"Last-Event-ID": after} if after else {})}
    timeout = Timeout(connect=SILENCE_S / 2, read=SILENCE_S)
    try:
        with planner.open_stream(path, headers=headers, timeout=timeout) as answer:
            if answer.status in _UNAVAILABLE:
                raise AwayError(f"the planner answered {answer.status}")
            if not client.is_success(answer):
                raise client.refusal(answer)
            yield from sse.messages(client.read_pieces(answer))
    except (HTTPError, sse.LineTooLongError) as error:
        raise AwayError(str(error)) from error


def _silence(text: str) -> None:
    del text
