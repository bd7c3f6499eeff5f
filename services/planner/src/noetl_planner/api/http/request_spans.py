"""The span and the duration of each request to the API."""

from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter
from typing import Any

from noetl_chassis.observability import instruments, names, tracing
from noetl_chassis.observability.tracing import Span, SpanKind
from noetl_planner.api.http import problems

# Probes and scrapes come every few seconds and are nobody's trace.
_TRACED = "/api/"
_HEADER = tracing.HEADER.encode()
_STATUS_ERROR = 500
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class TracedApi:
    """An application whose requests go on in the traces of their clients."""

    def __init__(self, app: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request and measure it."""
        if scope["type"] != "http" or not scope["path"].startswith(_TRACED):
            await self._app(scope, receive, send)
            return
        started = perf_counter()

        async def send_and_measure(message: Any) -> None:
            if message["type"] == "http.response.start":
                # A stream goes on for as long as its client listens: this is when it begins.
                _measure_request(scope, message["status"], perf_counter() - started)
            await send(message)

        await self._answer_traced(scope, receive, send_and_measure)

    async def _answer_traced(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its span; where nobody is told of spans, in its client's trace."""
        parent = _find_traceparent(scope["headers"])
        if tracing.are_spans_wanted():
            await self._answer_in_span(scope, receive, send, parent)
        elif parent is None:
            await self._app(scope, receive, send)
        else:
            with tracing.continue_trace(parent):
                await self._app(scope, receive, send)

    async def _answer_in_span(
        self, scope: Scope, receive: Receive, send: Send, parent: str | None
    ) -> None:
        method = _name_method(scope)
        with tracing.start_span(
            method,
            kind=SpanKind.SERVER,
            parent=parent,
            attributes={
                names.ATTR_METHOD: method,
                names.ATTR_PATH: problems.redact_path(scope["path"]),
                names.ATTR_SCHEME: scope["scheme"],
            },
        ) as span:

            async def send_and_note(message: Any) -> None:
                if message["type"] == "http.response.start":
                    _note_status(span, message["status"])
                await send(message)

            await self._app(scope, receive, send_and_note)
            # The router has found it by now.
            route = scope.get("path_template")
            if route:
                span.update_name(f"{method} {route}")
                span.set_attribute(names.ATTR_ROUTE, route)


def _name_method(scope: Scope) -> str:
    """Name the method; a client may write any word, and only known ones are names."""
    method = scope["method"]
    return method if method in _METHODS else "_OTHER"


def _measure_request(scope: Scope, status: int, duration_s: float) -> None:
    instruments.record_measurement(
        names.REQUEST_DURATION,
        duration_s,
        labels={
            names.METHOD: _name_method(scope),
            # The router has found it by now, if there is one: a path is no label.
            names.ROUTE: scope.get("path_template") or "none",
            names.STATUS: f"{status // 100}xx",
        },
    )


def _note_status(span: Span, status: int) -> None:
    span.set_attribute(names.ATTR_STATUS, status)
    if status >= _STATUS_ERROR:
        tracing.fail_span(span, str(status))


def _find_traceparent(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Read the one `traceparent`; several are none, as the standard has it."""
    traceparent = [value for name, value in headers if name == _HEADER]
    return traceparent[0].decode("latin-1") if len(traceparent) == 1 else None
