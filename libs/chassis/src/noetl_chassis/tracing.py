"""Spans, and the trace that crosses processes inside commands and facts (W3C `traceparent`)."""

import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from noetl_chassis.instruments import SCOPE

_PARENT = "traceparent"
_PARENT_FORM = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_propagator = TraceContextTextMapPropagator()


class Unrecorded(trace.NoOpTracerProvider):
    """Stands where no span goes anywhere: traces have their identities and nothing else.

    A recorded span costs as much as deciding on a fact; identities are all that logs and other
    processes need.
    """


@contextmanager
def span(
    name: str, *, attributes: Mapping[str, str | int], parent: str | None = None
) -> Iterator[None]:
    """Time a block; `parent` is the trace that it came with, else the current span."""
    if isinstance(trace.get_tracer_provider(), Unrecorded):
        token = context.attach(trace.set_span_in_context(NonRecordingSpan(_follows(parent))))
        try:
            yield
        finally:
            context.detach(token)
        return
    with trace.get_tracer(SCOPE).start_as_current_span(
        name,
        context=_propagator.extract({_PARENT: parent}) if parent else None,
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
    at = trace.get_current_span().get_span_context()
    if not at.is_valid:
        return None
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"


def _follows(parent: str | None) -> SpanContext:
    """Name a new span of the trace that `parent` tells, else of the current one, else of a new."""
    before = trace.get_current_span().get_span_context()
    told = _PARENT_FORM.fullmatch(parent) if parent else None
    trace_id, flags = before.trace_id, before.trace_flags
    if told is not None:
        trace_id, flags = int(told[1], 16), TraceFlags(int(told[3], 16))
    if not trace_id:
        trace_id, flags = _identity(128), TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(trace_id, _identity(64), is_remote=False, trace_flags=flags)


def _identity(bits: int) -> int:
    return random.getrandbits(bits) or 1
