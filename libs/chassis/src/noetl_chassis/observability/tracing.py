"""Spans, and the trace that crosses processes in messages and headers (W3C `get_traceparent`)."""

import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from noetl_chassis.observability import names, span_recording
from noetl_chassis.observability.instruments import SCOPE

__all__ = [
    "HEADER",
    "Span",
    "SpanKind",
    "are_spans_wanted",
    "continue_trace",
    "fail_span",
    "get_traceparent",
    "start_publication_span",
    "start_recorded_span",
    "start_span",
]

HEADER = "traceparent"
_LINKS_MAX = 128
_propagator = TraceContextTextMapPropagator()


@contextmanager
def start_span(
    name: str,
    *,
    attributes: Mapping[str, str | int],
    parent: str | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    links: Iterable[str | None] = (),
) -> Iterator[Span]:
    """Time a block; `parent` is the trace that it came with, else the current span.

    `links` are the contexts of further messages that the block is about.
    """
    context = _parse_traceparent(parent) if parent else None
    if not span_recording.are_spans_recorded():
        # Only their identities matter, for logs and traces.
        named_span = _build_named_span(context)
        token = contexts.attach(trace.set_span_in_context(named_span, context))
        try:
            yield named_span
        finally:
            contexts.detach(token)
        return
    with trace.get_tracer(SCOPE).start_as_current_span(
        name,
        context=context,
        kind=kind,
        attributes=dict(attributes),
        links=_build_links(links),
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except BaseException as problem:
            # Its text may quote what a tool was given; the log has it, masked.
            current.set_status(trace.StatusCode.ERROR, type(problem).__name__)
            raise


def fail_span(current: Span, error: str) -> None:
    """Say of which kind the failure of a span was, in a word that is no secret."""
    current.set_attribute(names.ATTR_ERROR, error)
    current.set_status(trace.StatusCode.ERROR, error)


def are_spans_wanted() -> bool:
    """Tell whether spans go to anybody, so that describing them is worth its time."""
    return span_recording.are_spans_recorded()


def start_recorded_span(
    name: str,
    *,
    attributes: Mapping[str, str | int],
    kind: SpanKind = SpanKind.INTERNAL,
    links: Iterable[str | None] = (),
) -> AbstractContextManager[object]:
    """Time a block where spans go to anybody; elsewhere do nothing."""
    if not span_recording.are_spans_recorded():
        return nullcontext()
    return start_span(name, attributes=attributes, kind=kind, links=links)


@contextmanager
def continue_trace(parent: str) -> Iterator[None]:
    """Go on within a trace that came from outside, without a span of its own."""
    token = contexts.attach(_parse_traceparent(parent))
    try:
        yield
    finally:
        contexts.detach(token)


@contextmanager
def start_publication_span(
    subject: str, *, messages: int, origins: Iterable[str | None]
) -> Iterator[str | None]:
    """Time the publication of messages; yield the `get_traceparent` for their headers, if any.

    `origins` are the contexts that the messages came from. Those of one trace go on in it: the
    first is the parent. Several are links.
    """
    if not span_recording.are_spans_recorded():
        yield None
        return
    destination = ".".join(subject.split(".", 2)[:2])
    known_origins = list(dict.fromkeys(origin for origin in origins if origin))
    with start_span(
        f"{names.SPAN_SEND} {destination}",
        kind=SpanKind.PRODUCER,
        parent=known_origins[0] if len(set(map(_get_trace, known_origins))) == 1 else None,
        links=known_origins if len(known_origins) > 1 else (),
        attributes={
            names.ATTR_SYSTEM: names.SYSTEM_NATS,
            names.ATTR_OPERATION: names.OPERATION_SEND,
            names.ATTR_DESTINATION: destination,
            names.ATTR_BATCH: messages,
        },
    ):
        yield get_traceparent()


def get_traceparent() -> str | None:
    """Return the W3C `traceparent` of the current span, for the next process; None without one."""
    at = trace.get_current_span().get_span_context()
    if not at.is_valid:
        return None
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"


def _get_trace(traceparent: str) -> str:
    """Return the trace of a `traceparent`: its second part."""
    return "".join(traceparent.split("-", 2)[1:2])


# Everything that one turn of a planner asks for comes with the same parent.
@lru_cache(maxsize=128)
def _parse_traceparent(parent: str) -> contexts.Context:
    return _propagator.extract({HEADER: parent}, contexts.Context())


def _build_links(origins: Iterable[str | None]) -> list[trace.Link]:
    """Make a link to each context that is one, as many as a span may have."""
    unique_origins = list(dict.fromkeys(origin for origin in origins if origin))[:_LINKS_MAX]
    span_contexts = (
        trace.get_current_span(_parse_traceparent(item)).get_span_context()
        for item in unique_origins
    )
    return [trace.Link(context) for context in span_contexts if context.is_valid]


def _build_named_span(context: contexts.Context | None) -> trace.Span:
    """Return a span of the same trace, or of a new one, that is nothing but its identity."""
    parent = trace.get_current_span(context).get_span_context()
    trace_id = parent.trace_id if parent.is_valid else random.getrandbits(128)
    flags = parent.trace_flags if parent.is_valid else trace.TraceFlags(trace.TraceFlags.SAMPLED)
    return trace.NonRecordingSpan(
        trace.SpanContext(
            trace_id,
            random.getrandbits(64),
            is_remote=False,
            trace_flags=flags,
            trace_state=parent.trace_state,
        )
    )
