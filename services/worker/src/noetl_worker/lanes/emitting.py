"""A task that streams: its rows leave in chunks while it runs, no faster than they are accepted."""

from collections.abc import Collection, Sequence
from typing import Any

from msgspec import UNSET, structs

from noetl_contracts import codec
from noetl_contracts.chunks import CHUNK_BYTES_MAX, CHUNKS_MAX
from noetl_contracts.commands import Command, StepWork
from noetl_contracts.facts import ChunkEmitted, CommandHeartbeat
from noetl_contracts.payloads import JSON_MEDIA_TYPE, ResultEnvelope
from noetl_playbook.model import Output, Stream
from noetl_playbook.results import PipelineResult
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.lanes.block import Block
from noetl_worker.lanes.hands import Hands
from noetl_worker.reporting import Reporter
from noetl_worker.spooling import Spool
from noetl_worker.tools.call import Call, Outcome

# After a silence, the facts that the planner has not taken are sent again.
_ASK_AGAIN_S = 2.0
_WINDOW_ROWS = 100
_KINDS = frozenset({"postgres", "duckdb", "http", "python"})


class Emitter:
    """Cuts rows into chunks; one chunk is in memory, and goes when a further row has come.

    A chunk that was emitted before stays as it is: a repeated attempt, here or by another worker,
    emits what follows it.
    """

    def __init__(
        self, *, command: Command, known: int, stream: Stream, hands: Hands, reporter: Reporter
    ) -> None:
        self.is_over = False
        self._command = command
        self._stream = stream
        self._hands = hands
        self._reporter = reporter
        self._progress = hands.progress
        self._spool = Spool()
        self._sent = known
        self._unheard: dict[int, ChunkEmitted] = {}
        self.begin()

    @property
    def window_rows(self) -> int:
        """Return how many rows are worth handing over together."""
        return min(_WINDOW_ROWS, self._stream.chunk_rows)

    @property
    def resident(self) -> int:
        """Return how many rows are held in memory."""
        return len(self._rows)

    def begin(self) -> None:
        """Start with the first row, as every attempt of the task does."""
        self._rows: list[bytes] = []
        self._bytes = 2
        self._index = 0
        self._row_count = 0
        self._columns: list[str] = []
        self._spool.clear()
        self._progress.wanted.set()

    async def take(self, rows: list[Any], columns: Sequence[str] = ()) -> None:
        """Take rows in order; waits while too many chunks are not accepted."""
        if columns and not self._columns:
            self._columns = list(columns)
        for row in rows:
            if not self._columns and not self._row_count and isinstance(row, dict):
                self._columns = list(row)
            data = codec.encode(row)
            if len(data) + 2 > CHUNK_BYTES_MAX:
                raise ToolFailure(_too_large(self._row_count, len(data)))
            size = self._bytes + len(data) + 1
            if self._rows and (
                len(self._rows) >= self._stream.chunk_rows or size > self._stream.chunk_bytes
            ):
                await self._emit(has_more=True)
            self._rows.append(data)
            self._bytes += len(data) + 1
            self._row_count += 1

    async def end(self, outcome: Outcome) -> Outcome:
        """Emit the last chunk and wait until the planner has them all."""
        if self._rows:
            await self._emit(has_more=False)
        while self._progress.taken.received < self._sent:
            await self._hear()
        self.is_over = True
        data = {} if outcome.data is UNSET else outcome.data
        counted = {"row_count": self._row_count, "columns": self._columns}
        return structs.replace(outcome, data={**data, **counted})

    async def keep(
        self,
        result: PipelineResult,
        *,
        output: Output | None,
        collected: Collection[str],
        notes: tuple[str, ...],
    ) -> ResultEnvelope:
        """Keep the task's result with all its rows, by reference."""
        return await self._hands.keeper.keep_spooled(
            result,
            self._spool,
            columns=self._columns,
            row_count=self._row_count,
            output=output,
            collected=collected,
            notes=notes,
        )

    def close(self) -> None:
        """Give back what the rows took."""
        self._spool.close()

    async def _emit(self, *, has_more: bool) -> None:
        count, index = len(self._rows), self._index
        data = self._hands.mask.data(b"[" + b",".join(self._rows) + b"]")
        self._rows, self._bytes, self._index = [], 2, index + 1
        self._spool.add(data[1:-1])
        if index < self._sent:
            return
        if index >= CHUNKS_MAX:
            text = f"the stream has more than {CHUNKS_MAX} chunks: raise stream.chunk_rows"
            raise ToolFailure(failure("limit", text, code="chunks"))
        while index - self._progress.taken.accepted >= self._stream.max_ahead:
            await self._hear()
        reference = await self._hands.payloads.store(
            data, media_type=JSON_MEDIA_TYPE, row_count=count
        )
        fact = ChunkEmitted(
            command_id=self._command.command_id,
            attempt=self._command.attempt,
            worker_id=self._hands.worker_id,
            index=index,
            row_count=count,
            ref=reference,
            has_more=has_more,
        )
        self._unheard[index] = fact
        self._sent = index + 1
        self._reporter.report(fact)
        await self._reporter.flush()

    def _beat(self) -> CommandHeartbeat:
        return CommandHeartbeat(
            command_id=self._command.command_id,
            attempt=self._command.attempt,
            worker_id=self._hands.worker_id,
        )

    async def _hear(self) -> None:
        """Wait for news of the planner; after a silence, say again what it may not know."""
        if await self._progress.change(_ASK_AGAIN_S):
            received = self._progress.taken.received
            self._unheard = {
                index: fact for index, fact in self._unheard.items() if index >= received - 1
            }
            return
        if self._unheard:
            self._reporter.report(*self._unheard.values())
        elif not self._progress.taken.received:
            # Whoever goes on with a stream has emitted nothing yet: any fact is answered.
            self._reporter.report(self._beat())
        await self._reporter.flush()


def emitter_of(
    command: Command, work: StepWork, block: Block, *, hands: Hands, reporter: Reporter
) -> Emitter | None:
    """Return what emits a step's chunks, or None for a step that does not stream."""
    stream = next((task.stream for task in block.step.tool if task.stream is not None), None)
    if stream is None:
        return None
    return Emitter(
        command=command, known=work.chunks, stream=stream, hands=hands, reporter=reporter
    )


async def run(call: Call, emitter: Emitter, hands: Hands) -> Outcome:
    """Run a call that streams: it ends when its last chunk has arrived."""
    if call.kind not in _KINDS:
        text = f"kind '{call.kind}' cannot stream: use {', '.join(sorted(_KINDS))}"
        return Outcome(error=failure("unsupported_tool", text))
    emitter.begin()
    outcome = await hands.tools.run(call)
    if outcome.error is not None:
        return outcome
    try:
        return await emitter.end(outcome)
    except ToolFailure as problem:
        return Outcome(error=problem.error)


def _too_large(row: int, size: int) -> Any:
    return failure(
        "payload_too_large",
        f"row {row} has {size} bytes, a chunk has at most {CHUNK_BYTES_MAX}: select less",
    )
