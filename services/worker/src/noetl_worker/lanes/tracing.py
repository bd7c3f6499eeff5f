"""Spans of commands and frames, as parts of the trace that their command belongs to."""

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from noetl_chassis import names
from noetl_chassis.instruments import SCOPE
from noetl_contracts.commands import Command
from noetl_worker.domain.frames import Frame

_PARENT = "traceparent"
_propagator = TraceContextTextMapPropagator()


@contextmanager
def command_span(command: Command) -> Iterator[None]:
    """Time a command within the trace that it came with."""
    carrier = {_PARENT: command.traceparent} if command.traceparent else {}
    attributes: dict[str, str | int] = {
        names.ATTR_EXECUTION: command.execution_id,
        names.ATTR_STEP: command.step,
        names.ATTR_ATTEMPT: command.attempt,
    }
    with trace.get_tracer(SCOPE).start_as_current_span(
        names.SPAN_COMMAND, context=_propagator.extract(carrier), attributes=attributes
    ):
        yield


@contextmanager
def frame_span(frame: Frame) -> Iterator[None]:
    """Time a frame within its command."""
    attributes: dict[str, str | int] = {
        names.ATTR_FRAME: frame.frame_id,
        names.ATTR_BATCH: len(frame.rows),
    }
    with trace.get_tracer(SCOPE).start_as_current_span(names.SPAN_FRAME, attributes=attributes):
        yield


def traceparent() -> str | None:
    """Name the current span for whoever goes on from here."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get(_PARENT)
