"""The span of a report that an attempt is lost, within the trace of its execution."""

from collections.abc import Iterator
from contextlib import contextmanager

from noetl_chassis.observability import names, tracing
from noetl_contracts.commands.command_work import Command
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.records import OverdueCommand
from noetl_storage.ports.ledger_ports import LedgerReader


@contextmanager
def open_report_span(command: Command | OverdueCommand, parent: str | None) -> Iterator[str | None]:
    """Time a report as a part of `parent`, linked to the sweep; gives its `traceparent`."""
    with tracing.start_span(
        names.SPAN_REPORT,
        parent=parent,
        links=(tracing.get_traceparent(),),
        attributes={
            names.ATTR_EXECUTION: command.execution_id,
            names.ATTR_CONVERSATION_ID: command.execution_id,
            names.ATTR_ATTEMPT: command.attempt,
        },
    ):
        yield tracing.get_traceparent()


async def find_execution_trace(ledger: LedgerReader, execution_id: ExecutionId) -> str | None:
    """Return the `traceparent` that an execution's first event has; None where spans go nowhere."""
    if not tracing.are_spans_wanted():
        return None
    events = await ledger.read_events(execution_id, events_max=1)
    traceparent = events[0].meta.get("traceparent") if events else None
    return traceparent if isinstance(traceparent, str) else None
