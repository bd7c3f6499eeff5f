"""Spans, and the trace that crosses processes inside commands and facts (W3C `traceparent`)."""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from noetl_chassis import audience
from noetl_chassis.instruments import SCOPE

_PARENT = "traceparent"
_propagator = TraceContextTextMapPropagator()


@contextmanager
def span(
    name: str, *, attributes: Mapping[str, str | int], parent: str | None = None
) -> Iterator[None]:
    """Time a block; `parent` is the trace that it came with, else the current span."""
    context = _context(parent) if parent else None
    if not audience.is_there():
        # Only their identities matter, for logs and traces.
        token = contexts.attach(trace.set_span_in_context(_named_only(context), context))
        try:
            yield
        finally:
            contexts.detach(token)
        return
    with trace.get_tracer(SCOPE).start_as_current_span(
        name,
        context=context,
        attributes=dict(attributes),
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield
        except BaseException as problem:
            # Its text may quote what a tool was given; the log has it, masked.
            current.set_status(trace.StatusCode.ERROR, type(problem).__name__)
            raise


# Everything that one turn of a planner asks for comes with the same parent.
@lru_cache(maxsize=128)
def _context(parent: str) -> contexts.Context:
    return _propagator.extract({_PARENT: parent})


def _named_only(context: contexts.Context | None) -> trace.Span:
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


def traceparent() -> str | None:
    """Name the current span for whoever goes on from here."""
    at = trace.get_current_span().get_span_context()
    if not at.is_valid:
        return None
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"
