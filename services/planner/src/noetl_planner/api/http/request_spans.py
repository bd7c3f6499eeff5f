"""The span of each request to the API, within the trace that its `traceparent` names."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from noetl_chassis.observability import names, tracing
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
        """Answer a request in its span; where nobody is told of spans, in its client's trace."""
        if scope["type"] != "http" or not scope["path"].startswith(_TRACED):
            await self._app(scope, receive, send)
            return
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
        # A client may write any word; only known ones are names.
        method = scope["method"] if scope["method"] in _METHODS else "_OTHER"
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


def _note_status(span: Span, status: int) -> None:
    span.set_attribute(names.ATTR_STATUS, status)
    if status >= _STATUS_ERROR:
        tracing.fail_span(span, str(status))


def _find_traceparent(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Read the one `traceparent`; several are none, as the standard has it."""
    traceparent = [value for name, value in headers if name == _HEADER]
    return traceparent[0].decode("latin-1") if len(traceparent) == 1 else None
