"""The span of each call of a tool, and the `traceparent` that goes out with it."""

from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from noetl_chassis.observability import names, tracing
from noetl_chassis.observability.tracing import Span, SpanKind
from noetl_worker.tools.calls.call import Call, Outcome, RequestMade

# Only what waits for another system is its client; DuckDB and Python run here.
_CLIENTS = frozenset({"http", "nats", "postgres"})
_PUBLISHING = "js_publish"


async def run_in_span(call: Call, run: Callable[[Call], Awaitable[Outcome]]) -> Outcome:
    """Run a call within a span that tells what it asked for and how that ended."""
    with tracing.start_span(
        _name_span(call), kind=_get_span_kind(call), attributes=_build_attributes(call)
    ) as span:
        outcome = await run(call)
        _describe_outcome(span, outcome)
        return outcome


def add_traceparent(headers: dict[str, str]) -> None:
    """Name the current span in headers, unless the task has named one."""
    if any(name.lower() == tracing.HEADER for name in headers):
        return
    current = tracing.get_traceparent()
    if current is not None:
        headers[tracing.HEADER] = current


def _name_span(call: Call) -> str:
    match call.kind:
        case "http":
            return _get_method(call)
        case "postgres":
            return names.DATABASE_POSTGRESQL
        case _:
            return f"{names.SPAN_TOOL} {call.kind}"


def _get_span_kind(call: Call) -> SpanKind:
    if call.kind == "nats" and call.fields.get("operation") == _PUBLISHING:
        return SpanKind.PRODUCER
    return SpanKind.CLIENT if call.kind in _CLIENTS else SpanKind.INTERNAL


def _build_attributes(call: Call) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        names.ATTR_TASK: call.task,
        names.ATTR_ATTEMPT: call.attempt,
    }
    match call.kind:
        case "http":
            attributes[names.ATTR_METHOD] = _get_method(call)
        case "postgres":
            attributes[names.ATTR_DATABASE] = names.DATABASE_POSTGRESQL
        case "nats":
            attributes[names.ATTR_SYSTEM] = names.SYSTEM_NATS
    return attributes


def _get_method(call: Call) -> str:
    return str(call.fields.get("method") or "GET").upper()


def _describe_outcome(span: Span, outcome: Outcome) -> None:
    if outcome.request is not None:
        _describe_request(span, outcome.request)
    if outcome.error is not None:
        tracing.fail_span(span, outcome.error.kind)


def _describe_request(span: Span, request: RequestMade) -> None:
    """Say what was asked, without what may be secret: the query and whom it names."""
    try:
        url = urlsplit(request.url)
        place = url.hostname or ""
        port = "" if url.port is None else f":{url.port}"
    except ValueError:
        return
    span.set_attribute(names.ATTR_URL, f"{url.scheme}://{place}{port}{url.path}")
    span.set_attribute(names.ATTR_SERVER, place)
    if request.status is not None:
        span.set_attribute(names.ATTR_STATUS, request.status)
