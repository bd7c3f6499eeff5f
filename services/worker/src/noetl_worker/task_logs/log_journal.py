"""Stores the lines of one attempt of a command in chunks, while the attempt goes on.

A chunk is written when 256 KiB of lines wait, or half a second after the first line that waits.
So a worker that is killed loses at most the lines since then. The event loop only cuts what it has
read into lines, all at once. They are masked and encoded in a thread, and stored by the payload
store's own threads. Where more than 1 MiB waits, readers of output wait, and with them, by its
pipe, the process that writes.

Followers read the chunks in the payload store, and no message is sent for a line: a line costs
neither the ledger nor NATS anything, and what a follower sees is what is kept.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from typing import Protocol

import structlog
from msgspec import Struct, structs

from noetl_chassis import identity
from noetl_chassis.blocking_work import run_in_thread
from noetl_chassis.clock import Clock
from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command
from noetl_contracts.ids import WorkerId
from noetl_contracts.log_chunks import NOTICE, LogChunk, LogLine, LogSource, build_chunk_name
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.task_logs.task_log import RawLine, TaskLog, build_line_texts

FLUSH_S = 0.5
CHUNK_BYTES = 256 * 1024
WAITING_BYTES_MAX = 1024 * 1024
# What a line takes besides its text.
_LINE_BYTES = 64
_LAST_FLUSH_S = 5.0
_WRITER_DIGITS = 8

log = structlog.get_logger(__name__)


class NamedObjects(Protocol):
    """The part of the payload store that keeps chunks of logs."""

    async def put_named(self, name: str, data: bytes) -> bytes | None:
        """Write an object unless the name is taken; raises `ToolFailure`."""


class PendingLines(Struct, frozen=True):
    """Lines that have come at once and wait to be stored."""

    at_us: int
    lines: Sequence[RawLine]
    stream: str
    level: str
    source: LogSource

    @property
    def size_bytes(self) -> int:
        """Return the room that they take while they wait."""
        return sum(len(line.data) for line in self.lines) + len(self.lines) * _LINE_BYTES


class EncodedChunk(Struct, frozen=True, kw_only=True):
    """A chunk as it is stored."""

    chunk: LogChunk
    data: bytes
    sha256: str


class LogJournal:
    """The log of one attempt of a command."""

    def __init__(
        self,
        command: Command,
        *,
        payloads: NamedObjects,
        mask: SecretMask,
        clock: Clock,
        worker_id: WorkerId,
    ) -> None:
        self._command = command
        self._payloads = payloads
        self._mask = mask
        self._clock = clock
        self._worker_id = worker_id
        self._pending_groups: list[PendingLines] = []
        self._waiting_bytes = 0
        self._number = 0
        self._stored_lines = 0
        self._previous_sha256 = ""
        self._writer = identity.mint_token()[:_WRITER_DIGITS]
        self._lost_lines = 0
        self._lost_reason = ""
        self._is_full = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        # Storing is no part of a task, whose clock stands while it asks the store itself.
        self._context = copy_context()
        self._flusher: asyncio.Task[None] | None = None
        self._added_lines = 0
        # Stored, or given up.
        self._done_lines = 0
        # Somebody waits until so many are done.
        self._wanted_lines = 0
        self._has_stored = asyncio.Condition()

    def open_log(self, site: UnitScope, *, task: str, task_attempt: int) -> TaskLog:
        """Begin the log of one try of a task."""
        source = LogSource(
            task=task,
            unit=site.unit,
            task_attempt=task_attempt,
            frame_id=site.frame_id,
            row_index=site.row_index,
        )
        return TaskLog(source, self)

    def add_lines(
        self, lines: Sequence[RawLine], stream: str, level: str, source: LogSource
    ) -> None:
        """Take lines that have come at once; they are stored soon."""
        at_us = int(self._clock.now().timestamp() * 1_000_000)
        pending = PendingLines(at_us, lines, stream, level, source)
        self._pending_groups.append(pending)
        self._added_lines += len(lines)
        self._waiting_bytes += pending.size_bytes
        if self._waiting_bytes >= CHUNK_BYTES:
            self._is_full.set()
        if self._waiting_bytes >= WAITING_BYTES_MAX:
            self._has_room.clear()
        if self._flusher is None:
            loop = asyncio.get_running_loop()
            self._flusher = loop.create_task(self._store_in_turns(), context=self._context)

    async def wait_for_room(self) -> None:
        """Return when less than 1 MiB waits to be stored."""
        await self._has_room.wait()

    @asynccontextmanager
    async def keep_lines(self) -> AsyncIterator[None]:
        """Let a block end when its lines are stored, so that its end is told after them.

        A block that is called off ends at once.
        """
        try:
            yield
        except Exception:
            await self.flush_lines()
            raise
        await self.flush_lines()

    async def flush_lines(self) -> None:
        """Return when the lines that have come so far are stored."""
        if self._done_lines >= self._added_lines:
            return
        added_lines = self._wanted_lines = self._added_lines
        self._is_full.set()
        async with self._has_stored:
            await self._has_stored.wait_for(lambda: self._done_lines >= added_lines)

    async def abandon_log(self) -> None:
        """Store what waits within a bounded time: somebody else may have the command already."""
        try:
            async with asyncio.timeout(_LAST_FLUSH_S):
                await self.flush_lines()
        except TimeoutError:
            log.warning("log lines lost", lines=_count_lines(self._pending_groups))
        finally:
            if self._flusher is not None:
                self._flusher.cancel()

    async def _store_in_turns(self) -> None:
        """Store chunks until there is nothing more to store."""
        while self._pending_groups:
            await self._wait_for_more()
            lines = self._take_lines()
            await self._store_chunk(lines)
            self._done_lines += _count_lines(lines)
            async with self._has_stored:
                self._has_stored.notify_all()
        self._flusher = None

    async def _wait_for_more(self) -> None:
        if self._done_lines < self._wanted_lines:
            return
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._is_full.wait()
        except TimeoutError:
            return

    async def _store_chunk(self, lines: list[PendingLines]) -> None:
        lines = self._take_notices(lines[0]) + lines
        encoded = await run_in_thread(self._encode_chunk, lines)
        name = build_chunk_name(encoded.chunk, self._clock.now())
        try:
            await self._payloads.put_named(name, encoded.data)
        except ToolFailure as problem:
            self._note_loss(_count_lines(lines), problem)
            return
        self._number = encoded.chunk.number
        self._stored_lines += _count_lines(lines)
        self._previous_sha256 = encoded.sha256

    def _take_lines(self) -> list[PendingLines]:
        """Take what makes one chunk, and let those who wait go on."""
        taken_bytes = count = 0
        for pending in self._pending_groups:
            taken_bytes += pending.size_bytes
            count += 1
            if taken_bytes >= CHUNK_BYTES:
                break
        lines = self._pending_groups[:count]
        del self._pending_groups[:count]
        self._waiting_bytes -= taken_bytes
        if self._waiting_bytes < CHUNK_BYTES:
            self._is_full.clear()
        if self._waiting_bytes < WAITING_BYTES_MAX:
            self._has_room.set()
        return lines

    def _encode_chunk(self, pending_groups: list[PendingLines]) -> EncodedChunk:
        places: dict[LogSource, int] = {}
        lines: list[LogLine] = []
        for pending in pending_groups:
            place = places.setdefault(pending.source, len(places))
            lines += [
                LogLine(pending.at_us, place, pending.stream, pending.level, text)
                for text in build_line_texts(pending.lines, self._mask)
            ]
        chunk = LogChunk(
            execution_id=self._command.execution_id,
            command_id=self._command.command_id,
            attempt=self._command.attempt,
            writer=self._writer,
            worker_id=self._worker_id,
            step=self._command.step,
            number=self._number + 1,
            previous_sha256=self._previous_sha256,
            first=self._stored_lines + 1,
            sources=tuple(places),
            lines=tuple(lines),
        )
        data = codec.encode_json(chunk)
        return EncodedChunk(chunk=chunk, data=data, sha256=codec.digest_hex(data))

    def _note_loss(self, count: int, problem: ToolFailure) -> None:
        """Let the next chunk say that lines are missing: a task does not fail for its log."""
        self._lost_lines += count
        self._lost_reason = problem.error.message
        log.warning("log lines not stored", lines=count, reason=self._lost_reason)

    def _take_notices(self, first: PendingLines) -> list[PendingLines]:
        """Return what the next chunk has to say before its first line."""
        if not self._lost_lines:
            return []
        text = f"{self._lost_lines:,} lines are missing here: {self._lost_reason}"
        self._lost_lines = 0
        notice = (RawLine(data=text.encode()),)
        return [structs.replace(first, lines=notice, stream=NOTICE, level="error")]


def _count_lines(pending_groups: list[PendingLines]) -> int:
    return sum(len(pending.lines) for pending in pending_groups)
