"""The ledger on PostgreSQL: histories out, appends in."""

from collections.abc import Sequence

import asyncpg

from noetl_contracts import codec
from noetl_contracts.events.frame_events import FrameEnd
from noetl_contracts.events.step_events import CallError, ItemEnd
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import (
    Append,
    AppendResult,
    HistoryHead,
    LineageLink,
    NewMessage,
    SettledRequest,
    StreamAppend,
)
from noetl_contracts.payloads import ResultEnvelope
from noetl_storage.ledger import append_checks
from noetl_storage.postgres import event_rows, queries
from noetl_storage.postgres.database import Database
from noetl_storage.postgres.ledger.states import build_change_rows

_QUERIES = queries.load_queries("ledger")


class PostgresLedger:
    """Reads with plain queries; appends through `noetl.append`, which alone may."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_head(self, execution_id: ExecutionId) -> HistoryHead | None:
        """Return where a history ends, or None when it has not begun."""
        return next(iter(await self.list_heads([execution_id])), None)

    async def list_heads(self, execution_ids: Sequence[ExecutionId]) -> list[HistoryHead]:
        """Return the heads of the histories that have begun, in any order."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_heads"], [int(execution) for execution in execution_ids]
        )
        return [_build_head(record) for record in rows]

    async def read_events(
        self, execution_id: ExecutionId, *, after_version: int = 0, events_max: int = 1000
    ) -> list[Envelope]:
        """Return at most `events_max` events after a version, in order."""
        rows = await self._database.fetch_rows(
            _QUERIES["read"], int(execution_id), after_version, events_max
        )
        return [event_rows.build_envelope(record) for record in rows]

    async def list_item_results(
        self, execution_id: ExecutionId, run_id: str, *, after_index: int = -1, results_max: int
    ) -> list[ItemEnd]:
        """Return a page of the outcomes of one loop epoch's items, in item order."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_item_results"], int(execution_id), run_id, after_index, results_max
        )
        return [_build_item_end(record) for record in rows]

    async def list_failed_items(
        self, execution_id: ExecutionId, run_id: str, *, after_index: int = -1, results_max: int
    ) -> list[CallError]:
        """Return a page of the items of one loop epoch that failed, in item order."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_failed_items"], int(execution_id), run_id, after_index, results_max
        )
        return [_build_item_error(record) for record in rows]

    async def list_frame_results(
        self,
        execution_id: ExecutionId,
        stage_id: str,
        *,
        after: tuple[int, int] = (-1, -1),
        results_max: int,
    ) -> list[FrameEnd]:
        """Return a page of the outcomes of one stage's frames, by slot and frame index."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_frame_results"],
            int(execution_id),
            int(stage_id),
            *after,
            results_max,
        )
        return [_build_frame_end(record) for record in rows]

    async def find_by_key(self, execution_id: ExecutionId, key: str) -> Envelope | None:
        """Return the event that took effect under an idempotency key, or None when none has."""
        record = await self._database.find_row(_QUERIES["find_by_key"], int(execution_id), key)
        return None if record is None else event_rows.build_envelope(record)

    async def find_outcome(self, execution_id: ExecutionId, run_id: str) -> Envelope | None:
        """Return the event that ended the work of a run as a whole, or None while it lasts."""
        record = await self._database.find_row(_QUERIES["find_outcome"], int(execution_id), run_id)
        return None if record is None else event_rows.build_envelope(record)

    async def trace_runs(
        self, execution_id: ExecutionId, step: str, *, links_max: int
    ) -> list[LineageLink]:
        """Return the latest run of a step, the run whose end started it, and so on, back."""
        rows = await self._database.fetch_rows(
            _QUERIES["trace"], int(execution_id), step, links_max
        )
        return [_build_link(record) for record in rows]

    async def append(self, batch: Append) -> AppendResult:
        """Write events and messages in one transaction."""
        fence, begun = batch.fence, batch.begun
        streams = append_checks.check_streams(batch)
        assert begun is None or not batch.states, "what begins has read nothing yet"
        record = await self._database.get_row(
            _QUERIES["begin"]
            if begun is not None
            else _QUERIES["append_states"]
            if batch.states
            else _QUERIES["append"],
            *(fence.shard, fence.owner, fence.epoch),
            [_build_stream_columns(stream) for stream in streams if not stream.expected_version],
            [_build_stream_columns(stream) for stream in streams if stream.expected_version],
            [
                event_rows.build_event_columns(envelope)
                for stream in streams
                for envelope in stream.envelopes
            ],
            [_build_message_columns(message) for message in batch.messages],
            [_build_settled_columns(request) for request in batch.settled_requests],
            batch.publish_lease_s,
            *([build_change_rows(batch.states)] if batch.states else ()),
            *(
                ()
                if begun is None
                else (*event_rows.build_request_columns(begun), _to_integer(batch.latest))
            ),
        )
        return AppendResult(outbox_ids=record["outbox_ids"], ingest_time=record["ingest_time"])


def _to_integer(identity: str | None) -> int | None:
    return None if identity is None else int(identity)


def _build_head(record: asyncpg.Record) -> HistoryHead:
    return HistoryHead(
        execution_id=ExecutionId(str(record["execution_id"])),
        version=record["version"],
        checksum=record["checksum"],
    )


def _build_item_end(record: asyncpg.Record) -> ItemEnd:
    event = event_rows.build_event(record)
    assert isinstance(event, ItemEnd), "asked for the ends of items"
    return event


def _build_item_error(record: asyncpg.Record) -> CallError:
    event = event_rows.build_event(record)
    assert isinstance(event, CallError), "asked for items that failed"
    return event


def _build_frame_end(record: asyncpg.Record) -> FrameEnd:
    event = event_rows.build_event(record)
    assert isinstance(event, FrameEnd), "asked for the ends of frames"
    return event


def _build_link(record: asyncpg.Record) -> LineageLink:
    ref_id = record["event_id"]
    result = record["result"]
    return LineageLink(
        step=record["step"],
        run_id=record["run_id"],
        entered_version=record["entered_version"],
        ref_id=None if ref_id is None else str(ref_id),
        is_error=record["error"] is not None,
        result=None if result is None else codec.convert_value(result, ResultEnvelope),
        created_at=record["created_at"],
    )


def _build_stream_columns(stream: StreamAppend) -> event_rows.Columns:
    """Split what a history gains into the values of a `noetl.new_stream`."""
    last = stream.envelopes[-1]
    return (
        int(stream.execution_id),
        stream.tenant_id,
        stream.organization_id,
        stream.expected_version,
        last.stream_version,
        last.envelope_checksum,
    )


def _build_message_columns(message: NewMessage) -> event_rows.Columns:
    """Split a message into the values of a `noetl.new_message`."""
    return (
        int(message.execution_id),
        message.subject,
        message.message_id,
        message.data,
        message.codec,
    )


def _build_settled_columns(settled_request: SettledRequest) -> event_rows.Columns:
    """Split what names a request into the values of a `noetl.settled_request`."""
    return (
        settled_request.request_id,
        int(settled_request.execution_id),
        settled_request.tenant_id,
        settled_request.organization_id,
    )
