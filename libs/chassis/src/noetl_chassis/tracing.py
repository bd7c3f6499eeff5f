"""Spans, and the trace that crosses processes inside commands and facts (W3C `traceparent`)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from noetl_chassis.instruments import SCOPE

_PARENT = "traceparent"
_propagator = TraceContextTextMapPropagator()


@contextmanager
def span(
    name: str, *, attributes: Mapping[str, str | int], parent: str | None = None
) -> Iterator[None]:
    """Time a block; `parent` is the trace that it came with, else the current span."""
    context = _propagator.extract({_PARENT: parent}) if parent else None
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


def traceparent() -> str | None:
    """Name the current span for whoever goes on from here."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get(_PARENT)
