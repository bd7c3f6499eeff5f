"""Spans of commands and frames, as parts of the trace that their command belongs to."""

from contextlib import AbstractContextManager

from noetl_chassis import names, tracing
from noetl_chassis.tracing import SpanKind
from noetl_contracts.commands import Command
from noetl_worker.domain.frames import Frame


def command_span(command: Command, *, sent_by: str | None = None) -> AbstractContextManager[object]:
    """Time a command within the trace that it came with; `sent_by` is the span of its sending."""
    return tracing.span(
        names.SPAN_COMMAND,
        parent=command.traceparent,
        kind=SpanKind.CONSUMER,
        links=(sent_by,),
        attributes={
            names.ATTR_SYSTEM: names.SYSTEM_NATS,
            names.ATTR_OPERATION: names.OPERATION_PROCESS,
            names.ATTR_CONVERSATION_ID: command.execution_id,
            names.ATTR_EXECUTION: command.execution_id,
            names.ATTR_STEP: command.step,
            names.ATTR_ATTEMPT: command.attempt,
        },
    )


def frame_span(frame: Frame) -> AbstractContextManager[object]:
    """Time a frame within its command."""
    return tracing.span(
        names.SPAN_FRAME,
        attributes={names.ATTR_FRAME: frame.frame_id, names.ATTR_BATCH: len(frame.rows)},
    )
