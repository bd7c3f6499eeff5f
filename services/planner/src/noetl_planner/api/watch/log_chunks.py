"""The chunks of an execution's logs, as the payload store has them: listed, read, followed.

A follower looks for new chunks in the payload store, often while some come and once a second at
rest. A look lists the latest minutes alone, so its cost does not grow with the log, and nothing
but the store has to be there: neither NATS nor the worker that wrote. Workers' clocks differ, and
a chunk is named before it is stored, so each look goes back two minutes.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct

from noetl_chassis.task_group import open_task_group
from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId
from noetl_contracts.log_chunks import (
    KINDS_WITH_LOG,
    LogChunk,
    LogChunkName,
    build_chunk_prefix,
    parse_chunk_name,
)
from noetl_contracts.status import RunStatus
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.lookup import execution_lookup, views
from noetl_planner.api.lookup.views import Row
from noetl_planner.api.watch.log_filter import ALL_LINES, LogFilter
from noetl_playbook.model.playbook import Playbook
from noetl_playbook.plan import map_steps_by_name

POLL_FIRST_S = 0.2
POLL_MAX_S = 1.0
# How long after the end of an execution a worker that was stopped may still store lines.
SETTLE_S = 1.0
_MINUTE = timedelta(minutes=1)
_LATE = timedelta(minutes=2)
_MINUTES_LISTED_MAX = 10
_NAMES_LISTED_MAX = 1000
_READ_AT_ONCE = 8


class ReadChunk(Struct, frozen=True, kw_only=True):
    """A chunk and its name; without a chunk it cannot be read, and `problem` says why.

    With a chunk, `problem` says that its log is not whole.
    """

    name: LogChunkName
    chunk: LogChunk | None
    problem: str = ""


class LogChunks:
    """The chunks of one execution, or those that may hold the lines that are wanted."""

    def __init__(
        self,
        services: ApiServices,
        execution_id: ExecutionId,
        *,
        wanted: LogFilter = ALL_LINES,
    ) -> None:
        self._services = services
        self._execution_id = execution_id
        self._wanted = wanted
        # The digest and the number of the latest chunk that was read of each log.
        self._latest_by_writer: dict[str, tuple[int, str]] = {}

    async def list_names(self, minute: datetime | None = None) -> list[LogChunkName]:
        """List what is there, of one minute or of all, in the order of time."""
        return self._choose_names(
            await self._services.payloads.list_names(
                build_chunk_prefix(self._execution_id, minute), **self._services.tenant_scope
            )
        )

    async def iterate_names(self, after: str = "") -> AsyncGenerator[LogChunkName]:
        """Yield what is there behind a name, in the order of time, listed page by page."""
        while True:
            names = await self._services.payloads.list_names(
                build_chunk_prefix(self._execution_id),
                **self._services.tenant_scope,
                after=after,
                names_max=_NAMES_LISTED_MAX,
            )
            for name in self._choose_names(names):
                yield name
            if len(names) < _NAMES_LISTED_MAX:
                return
            after = names[-1]

    async def list_names_behind(self, after: str, *, names_max: int) -> list[LogChunkName]:
        """List so many names behind one, without a look at those that follow."""
        names: list[LogChunkName] = []
        async with aclosing(self.iterate_names(after)) as iterated:
            async for name in iterated:
                names.append(name)
                if len(names) == names_max:
                    break
        return names

    def _choose_names(self, names: Sequence[str]) -> list[LogChunkName]:
        parsed = (parse_chunk_name(name) for name in names)
        return [name for name in parsed if name is not None and self._wanted.covers_chunk(name)]

    async def read_chunks(self, first: LogChunkName | None) -> AsyncGenerator[ReadChunk]:
        """Yield chunks from a place on, or all; they are read a few ahead, and more by and by."""
        names: list[LogChunkName] = [] if first is None else [first]
        size = 1
        async for name in self.iterate_names("" if first is None else first.name):
            names.append(name)
            if len(names) < size:
                continue
            for log_chunk in await self._read_together(names):
                yield log_chunk
            names, size = [], min(2 * size, _READ_AT_ONCE)
        for log_chunk in await self._read_together(names):
            yield log_chunk

    async def _read_together(self, names: Sequence[LogChunkName]) -> list[ReadChunk]:
        """Read chunks at once, and look at them in their order."""
        async with open_task_group() as group:
            tasks = [group.create_task(self._find_chunk(name)) for name in names]
        return [
            self._check_chunk(name, task.result()) for name, task in zip(names, tasks, strict=True)
        ]

    async def _find_chunk(self, name: LogChunkName) -> bytes | None:
        return await self._services.payloads.find_named(name.name, **self._services.tenant_scope)

    async def read_chunk(self, name: LogChunkName) -> ReadChunk:
        """Read a chunk, and compare it with the one of its log that was read before."""
        return self._check_chunk(name, await self._find_chunk(name))

    def _check_chunk(self, name: LogChunkName, data: bytes | None) -> ReadChunk:
        if data is None:
            return ReadChunk(name=name, chunk=None, problem="a chunk of this log was removed")
        try:
            chunk = codec.decode_as(data, LogChunk)
        except (msgspec.DecodeError, msgspec.ValidationError):
            return ReadChunk(name=name, chunk=None, problem="a chunk of this log cannot be read")
        before = self._latest_by_writer.get(chunk.writer)
        self._latest_by_writer[chunk.writer] = (chunk.number, codec.digest_hex(data))
        is_next = before is None or before == (chunk.number - 1, chunk.previous_sha256)
        problem = "" if is_next else "lines before this one were changed or are missing"
        return ReadChunk(name=name, chunk=chunk, problem=problem)

    async def has_execution_ended(self) -> bool:
        """Tell whether the execution has ended."""
        return views.is_terminal(
            await execution_lookup.get_execution_row(self._services, self._execution_id)
        )


class LogFollower:
    """Reads chunks as they come, until the execution has ended and its last lines are there."""

    def __init__(
        self, chunks: LogChunks, services: ApiServices, *, after: LogChunkName | None = None
    ) -> None:
        self._chunks = chunks
        self._services = services
        self._from = None if after is None else after.minute - _LATE
        self._known_names: set[LogChunkName] = set()
        self._looked_at: datetime | None = None
        # For a client that has seen the end already, and needs no worker to be waited for.
        self.has_ended = asyncio.Event()

    async def read_chunks(self) -> AsyncIterator[ReadChunk | None]:
        """Yield each chunk once, and None after a look that found nothing."""
        poll_s, is_over = POLL_FIRST_S, False
        while not self._services.stop.is_set():
            names = await self._list_new_names()
            for name in names:
                yield await self._chunks.read_chunk(name)
            if names:
                poll_s = POLL_FIRST_S
                continue
            if is_over:
                return
            yield None
            is_over = self.has_ended.is_set() or await self._chunks.has_execution_ended()
            await self._wait_for_end(SETTLE_S if is_over else poll_s)
            poll_s = min(poll_s * 2, POLL_MAX_S)

    async def _list_new_names(self) -> list[LogChunkName]:
        """Return the names that were not there before."""
        now = self._services.clock.now()
        names: list[LogChunkName] = []
        minutes = self._list_minutes_until(now)
        if minutes is None:
            names = await self._chunks.list_names()
        else:
            for minute in minutes:
                names += await self._chunks.list_names(minute)
        new = [name for name in names if self._is_new_name(name)]
        self._looked_at = max([now, *(name.minute for name in new)])
        horizon = min(now, self._looked_at) - _LATE - _MINUTE
        self._known_names = {name for name in (*self._known_names, *new) if name.minute >= horizon}
        return sorted(new, key=lambda name: name.name)

    def _is_new_name(self, name: LogChunkName) -> bool:
        return name not in self._known_names and (self._from is None or name.minute >= self._from)

    def _list_minutes_until(self, now: datetime) -> list[datetime] | None:
        """Return the minutes to look through; None for all of them."""
        if self._looked_at is None:
            return None
        first, last = min(self._looked_at, now) - _LATE, max(self._looked_at, now)
        count = int((last - first) / _MINUTE) + 2
        if count > _MINUTES_LISTED_MAX:
            return None
        return [first + _MINUTE * number for number in range(count)]

    async def _wait_for_end(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.has_ended.wait()


_NAME_SHOWN = 200
_LIVE = frozenset({RunStatus.PENDING, RunStatus.RUNNING})


async def explain_absence(services: ApiServices, row: Row, wanted: LogFilter) -> str:
    """Say in one sentence why nothing was written."""
    step = wanted.step
    if wanted.attempt is not None:
        of_step = "" if step is None else f" of step {step[:_NAME_SHOWN]!r}"
        return f"attempt {wanted.attempt}{of_step} wrote nothing"
    is_over = views.is_terminal(row)
    if step is None:
        return "no task wrote anything" if is_over else "no task has written anything so far"
    state = await execution_lookup.fold_execution(services, ExecutionId(row["execution_id"]))
    silent = await _list_silent_kinds(services, row, step, version=state.catalog_version)
    step_state = state.steps.get(step)
    step_label = f"step {step[:_NAME_SHOWN]!r}"
    if step_state is None or step_state.run_id is None:
        text = f"{step_label} did not run" if is_over else f"{step_label} has not begun"
    elif step_state.status in _LIVE and not is_over:
        text = f"{step_label} has written nothing so far"
    else:
        text = f"{step_label} wrote nothing"
    return text if not silent else f"{text}: tasks of kind {', '.join(silent)} write no lines"


async def _list_silent_kinds(
    services: ApiServices, row: Row, step: str, *, version: int
) -> list[str]:
    """List the kinds of a step whose tasks write no lines, where none of its tasks does.

    None are listed of a playbook that is not kept any more, or that has no such step.
    """
    entry = await services.playbooks.catalog.find_playbook(
        row["path"], version=version or None, **services.tenant_scope
    )
    if entry is None:
        return []
    steps = map_steps_by_name(codec.convert_value(entry.model, Playbook))
    if step not in steps:
        return []
    kinds = {task.kind for task in steps[step].tool}
    return [] if kinds & KINDS_WITH_LOG else sorted(kinds)
