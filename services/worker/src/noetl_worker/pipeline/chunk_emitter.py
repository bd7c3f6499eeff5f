"""Emits the rows of a streaming task in chunks while it runs, as fast as the planner accepts."""

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import UNSET, structs

from noetl_contracts import codec
from noetl_contracts.commands.command_work import CHUNK_BYTES_MAX, CHUNKS_MAX, Command, StepWork
from noetl_contracts.payloads import JSON_MEDIA_TYPE, ResultEnvelope
from noetl_contracts.requests.facts import ChunkEmitted, CommandHeartbeat
from noetl_playbook.model.playbook import Output, Stream
from noetl_playbook.views.results import PipelineResult
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.commands.fact_publisher import AttemptReporter
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.payloads.row_spool import RowSpool
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline
from noetl_worker.tools.calls.call import Call, Outcome

# Without news from the planner for so long, facts that it has not confirmed are sent again.
_RESEND_S = 2.0
_WINDOW_ROWS = 100
STREAM_KINDS = frozenset({"postgres", "duckdb", "spark", "http", "python"})


class ChunkEmitter:
    """Groups rows into chunks and reports each to the planner as a `ChunkEmitted` fact.

    One chunk is in memory; it is emitted when the next row arrives. `emitted_chunks` are chunks
    that an earlier attempt emitted: this attempt skips them and emits those that follow.
    """

    def __init__(
        self,
        *,
        command: Command,
        emitted_chunks: int,
        stream: Stream,
        services: CommandServices,
        reporter: AttemptReporter,
    ) -> None:
        self.is_over = False
        self._command = command
        self._stream = stream
        self._services = services
        self._reporter = reporter
        self._progress = services.progress
        self._spool = RowSpool()
        self._sent_count = emitted_chunks
        self._unconfirmed: dict[int, ChunkEmitted] = {}
        self.restart_rows()

    @property
    def window_rows(self) -> int:
        """Return how many rows are worth handing over together."""
        return min(_WINDOW_ROWS, self._stream.chunk_rows)

    def restart_rows(self) -> None:
        """Reset to the first row, at the start of every attempt of the task."""
        self._rows: list[bytes] = []
        # The two brackets of the JSON list.
        self._bytes = 2
        self._index = 0
        self._row_count = 0
        self._columns: list[str] = []
        self._spool.clear_rows()
        self._progress.hint_wanted.set()

    async def write_rows(self, rows: list[Any], columns: Sequence[str] = ()) -> None:
        """Add rows in order; waits while too many chunks are not accepted."""
        if columns and not self._columns:
            self._columns = list(columns)
        for row in rows:
            if not self._columns and not self._row_count and isinstance(row, dict):
                self._columns = list(row)
            data = codec.encode_json(row)
            if len(data) + 2 > CHUNK_BYTES_MAX:
                raise ToolFailure(_build_too_large_error(self._row_count, len(data)))
            size = self._bytes + len(data) + 1
            if self._rows and (
                len(self._rows) >= self._stream.chunk_rows or size > self._stream.chunk_bytes
            ):
                await self._emit_chunk(has_more=True)
            self._rows.append(data)
            self._bytes += len(data) + 1
            self._row_count += 1

    async def finish_stream(self, outcome: Outcome) -> Outcome:
        """Emit the last chunk and wait until the planner has received all chunks."""
        if self._rows:
            await self._emit_chunk(has_more=False)
        while self._progress.stream_progress.received < self._sent_count:
            await self._wait_for_progress()
        self.is_over = True
        data = {} if outcome.data is UNSET else outcome.data
        count_fields = {"row_count": self._row_count, "columns": self._columns}
        return structs.replace(outcome, data={**data, **count_fields})

    async def store_result(
        self,
        result: PipelineResult,
        *,
        output: Output | None,
        collected: Collection[str],
        notes: tuple[str, ...],
    ) -> ResultEnvelope:
        """Store the task's result with all its rows, and return its reference."""
        return await self._services.keeper.store_spooled(
            result,
            self._spool,
            columns=self._columns,
            row_count=self._row_count,
            output=output,
            collected=collected,
            notes=notes,
        )

    def close(self) -> None:
        """Remove the spooled rows."""
        self._spool.close()

    async def _emit_chunk(self, *, has_more: bool) -> None:
        count, index = len(self._rows), self._index
        data = self._services.mask.mask_bytes(b"[" + b",".join(self._rows) + b"]")
        self._rows, self._bytes, self._index = [], 2, index + 1
        self._spool.add_rows(data[1:-1])
        if index < self._sent_count:
            return
        if index >= CHUNKS_MAX:
            text = f"the stream has more than {CHUNKS_MAX} chunks: raise stream.chunk_rows"
            raise ToolFailure(build_error("limit", text, code="chunks"))
        while index - self._progress.stream_progress.accepted >= self._stream.max_ahead:
            await self._wait_for_progress()
        reference = await self._services.payloads.store_payload(
            data, media_type=JSON_MEDIA_TYPE, row_count=count
        )
        fact = ChunkEmitted(
            command_id=self._command.command_id,
            attempt=self._command.attempt,
            worker_id=self._services.worker_id,
            index=index,
            row_count=count,
            ref=reference,
            has_more=has_more,
        )
        self._unconfirmed[index] = fact
        self._sent_count = index + 1
        self._reporter.report_facts(fact)
        await self._reporter.flush_facts()

    def _build_heartbeat(self) -> CommandHeartbeat:
        return CommandHeartbeat(
            command_id=self._command.command_id,
            attempt=self._command.attempt,
            worker_id=self._services.worker_id,
        )

    async def _wait_for_progress(self) -> None:
        """Wait for progress of the planner; without any, send unconfirmed facts again."""
        if await self._progress.wait_for_change(_RESEND_S):
            received_count = self._progress.stream_progress.received
            self._unconfirmed = {
                index: fact
                for index, fact in self._unconfirmed.items()
                if index >= received_count - 1
            }
            return
        if self._unconfirmed:
            self._reporter.report_facts(*self._unconfirmed.values())
        elif not self._progress.stream_progress.received:
            # An attempt that continues a stream has emitted nothing yet: any fact gets an answer.
            self._reporter.report_facts(self._build_heartbeat())
        await self._reporter.flush_facts()


def build_emitter(
    command: Command,
    work: StepWork,
    block: CompiledPipeline,
    *,
    services: CommandServices,
    reporter: AttemptReporter,
) -> ChunkEmitter | None:
    """Return the chunk emitter of a step, or None for a step that does not stream."""
    stream = next((task.stream for task in block.step.tool if task.stream is not None), None)
    if stream is None:
        return None
    return ChunkEmitter(
        command=command,
        emitted_chunks=work.chunks,
        stream=stream,
        services=services,
        reporter=reporter,
    )


async def run_streaming_call(
    call: Call, emitter: ChunkEmitter, services: CommandServices
) -> Outcome:
    """Run a call that streams: it ends when its last chunk has arrived."""
    if call.kind not in STREAM_KINDS:
        text = f"kind '{call.kind}' cannot stream: use {', '.join(sorted(STREAM_KINDS))}"
        return Outcome(error=build_error("unsupported_tool", text))
    if call.fields.get("sink") is not None:
        text = (
            "the rows of a task go into a stream or into the dataset of its output: write the "
            "dataset in a step of its own"
        )
        return Outcome(error=build_error("validation", text, source=call.kind))
    emitter.restart_rows()
    outcome = await services.tools.run(call)
    if outcome.error is not None:
        return outcome
    try:
        return await emitter.finish_stream(outcome)
    except ToolFailure as problem:
        return Outcome(error=problem.error)


def _build_too_large_error(row: int, size: int) -> Any:
    return build_error(
        "payload_too_large",
        f"row {row} has {size} bytes, a chunk has at most {CHUNK_BYTES_MAX}: select less",
    )
