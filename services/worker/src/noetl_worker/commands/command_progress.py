"""Publishes the progress of Spark jobs for clients that follow an execution."""

from contextlib import AbstractContextManager

from noetl_chassis.observability import names, tracing
from noetl_chassis.observability.tracing import SpanKind
from noetl_contracts import codec, subjects
from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.task_metrics import SparkProgress, StepProgress
from noetl_messaging.streams.ports import Hints
from noetl_worker.domain.frames import Frame

# Tasks that may wait for Spark.
KINDS_ON_SPARK = frozenset({"spark", "transfer"})


async def publish_progress(hints: Hints, command: Command, spark: SparkProgress) -> None:
    """Send the progress of a command as a hint: what is lost is sent again a second later."""
    progress = StepProgress(
        step=command.step, command_id=command.command_id, attempt=command.attempt, spark=spark
    )
    await hints.broadcast(
        subjects.build_progress_hint(command.execution_id), codec.encode_json(progress)
    )


def start_command_span(
    command: Command, *, sent_by: str | None = None
) -> AbstractContextManager[object]:
    """Time a command within the trace that it came with; `sent_by` is the span of its sending."""
    return tracing.start_span(
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


def start_frame_span(frame: Frame) -> AbstractContextManager[object]:
    """Time a frame within its command."""
    return tracing.start_span(
        names.SPAN_FRAME,
        attributes={names.ATTR_FRAME: frame.frame_id, names.ATTR_BATCH: len(frame.rows)},
    )
