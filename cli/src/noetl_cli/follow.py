"""Follows an execution's events through broken connections."""

import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Any

import msgspec
from urllib3 import BaseHTTPResponse, Timeout
from urllib3.exceptions import HTTPError

from noetl_cli import sse
from noetl_cli.client import Client, is_success, refusal
from noetl_cli.failures import CliError
from noetl_contracts import codec

# Heartbeats come every second: several missing ones mean that the connection is dead.
SILENCE_S = 10.0
PATIENCE_S = 60.0
REST_FIRST_S = 0.2
REST_MAX_S = 2.0
END = "end"
PIECE_BYTES_MAX = 64 * 1024
_AWAY = frozenset({HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.BAD_GATEWAY})

EventView = dict[str, Any]


class _Away(Exception):  # noqa: N818 - the planner may be back in a moment
    """The stream broke off before the execution ended."""


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

    def events(self, tell: Callable[[str], None]) -> Iterator[EventView | None]:
        """Yield events in order, and None whenever there is time to look at the clock.

        Called again, it goes on after the last event that was taken.
        """
        self._tell = tell
        while True:
            try:
                yield from self._connected()
            except _Away as error:
                self._lose(str(error))
            else:
                return
            yield None
            time.sleep(self._rest_s)
            self._rest_s = min(self._rest_s * 2, REST_MAX_S)

    def _connected(self) -> Iterator[EventView | None]:
        """Follow one connection until the execution ends; raises `_Away`."""
        path = f"/api/executions/{self._execution_id}/stream"
        headers = {"Last-Event-ID": str(self._after), "Accept": "text/event-stream"}
        timeout = Timeout(connect=SILENCE_S / 2, read=SILENCE_S)
        try:
            with self._client.open_stream(path, headers=headers, timeout=timeout) as answer:
                if not is_success(answer):
                    self._refuse(answer)
                for message in sse.messages(_pieces(answer)):
                    self._find()
                    if message.event == END:
                        return
                    if message.data is None:
                        yield None
                        continue
                    view = codec.decode_as(message.data, EventView)
                    yield view
                    self._after = int(view["version"])
        except (HTTPError, sse.LineTooLongError, msgspec.DecodeError) as error:
            raise _Away(str(error)) from error
        raise _Away("the stream ended early")

    def _refuse(self, answer: BaseHTTPResponse) -> None:
        if answer.status in _AWAY:
            raise _Away(f"the planner answered {answer.status}")
        raise refusal(answer)

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


def _pieces(answer: BaseHTTPResponse) -> Iterator[bytes]:
    """Yield bytes as they come, however the server cuts them."""
    while piece := answer.read1(PIECE_BYTES_MAX):
        yield piece


def _silence(text: str) -> None:
    del text
