"""Runs the rows of a frame, and spills their outputs to the payload store above a size limit.

A part is what was held when it became too much. At the end all of it is one result, as if nothing
had been put away; the parts are mentioned by nobody and collected.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import Struct, structs

from noetl_chassis.observability import instruments, names
from noetl_chassis.task_group import open_task_group
from noetl_contracts import codec
from noetl_contracts.commands.task_metrics import MetricsByTask, add_task_metrics
from noetl_contracts.commands.waits import ELAPSED, Resume
from noetl_contracts.errors import ErrorObject
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_playbook.templates import output_forms
from noetl_playbook.views import ctx_references, error_view
from noetl_playbook.views.result_view import view_pipeline
from noetl_worker.commands.command_context import CommandContext, build_frame_names
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.domain.frames import Frame, FrameResult
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.payloads.tenant_payloads import TenantPayloads
from noetl_worker.pipeline import parked_work
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline
from noetl_worker.pipeline.interpreter import Pipeline, PipelineEnd
from noetl_worker.pipeline.parked_work import (
    FrameParked,
    PipelineParked,
    ResumedPipeline,
    SavedFrame,
    WaitingRow,
)
from noetl_worker.pipeline.state import PipelineUnit
from noetl_worker.pipeline.task_waits import is_time_over, sort_waiting_rows
from noetl_worker.tools.calls.call import Outcome, Transaction

_PIECE_BYTES = 256 * 1024
# Rows that run at once end a little out of order, so that neighbours lie in two parts.
_PARTS_READ = 2


class _PartPlace(Struct, frozen=True):
    """Where a row's output lies in the store."""

    part: int
    start: int
    end: int


class RowOutputs:
    """Plain outputs by row; with `bytes_max` 0 all of them stay in memory."""

    def __init__(self, *, payloads: TenantPayloads, mask: SecretMask, bytes_max: int) -> None:
        self._payloads = payloads
        self._mask = mask
        self._bytes_max = bytes_max
        self._output_by_row: dict[int, Any] = {}
        self._held_bytes = 0
        self._parts: list[PayloadRef] = []
        self._place_by_row: dict[int, _PartPlace] = {}
        self._data_by_part: dict[int, bytes] = {}
        self._flushing = asyncio.Lock()

    @property
    def has_parts(self) -> bool:
        """Tell whether some outputs are in the store already."""
        return bool(self._parts)

    @property
    def row_indices(self) -> list[int]:
        """Return which rows have given something, in order."""
        return sorted(self._output_by_row.keys() | self._place_by_row.keys())

    async def put_output(self, row: int, value: Any) -> None:
        """Add the output of a row; raises `ToolFailure` when a part cannot be stored."""
        self._output_by_row[row] = value
        if not self._bytes_max:
            return
        self._held_bytes += len(codec.encode_json(value))
        if self._held_bytes > self._bytes_max:
            async with self._flushing:
                await self._flush_part()

    async def _flush_part(self) -> None:
        """Store the outputs in memory as a part; on cancellation they stay in memory."""
        output_by_row, self._output_by_row, self._held_bytes = self._output_by_row, {}, 0
        if not output_by_row:
            return
        data, places, part = bytearray(b"["), {}, len(self._parts)
        for row, value in output_by_row.items():
            start = len(data)
            data += self._encode_output(value)
            places[row] = _PartPlace(part, start, len(data))
            data += b","
        data[-1:] = b"]"
        try:
            reference = await self._payloads.store_payload(
                bytes(data), media_type=JSON_MEDIA_TYPE, row_count=len(output_by_row)
            )
            self._parts.append(reference)
            self._place_by_row.update(places)
        finally:
            if len(self._parts) == part:
                self._output_by_row = {**output_by_row, **self._output_by_row}

    def list_held(self, rows: Sequence[int]) -> list[Any]:
        """Return outputs that are in memory, None where a row gave nothing."""
        return [self._output_by_row.get(row) for row in rows]

    async def list_all(self) -> list[tuple[int, Any]]:
        """Return every output with its row, in order; raises `ToolFailure`."""
        return [(row, codec.decode_json(await self._read_data(row))) for row in self.row_indices]

    async def iterate_pieces(self, rows: Sequence[int]) -> AsyncIterator[bytes]:
        """Yield the masked JSON of outputs, with commas between them; raises `ToolFailure`."""
        piece = bytearray()
        for number, row in enumerate(rows):
            piece += b"," if number else b""
            piece += await self._read_data(row)
            if len(piece) >= _PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece)

    async def _read_data(self, row: int) -> bytes:
        place = self._place_by_row.get(row)
        if place is None:
            return self._encode_output(self._output_by_row.get(row))
        if place.part not in self._data_by_part:
            while len(self._data_by_part) >= _PARTS_READ:
                del self._data_by_part[next(iter(self._data_by_part))]
            self._data_by_part[place.part] = await self._payloads.read_payload(
                self._parts[place.part]
            )
        return self._data_by_part[place.part][place.start : place.end]

    def _encode_output(self, value: Any) -> bytes:
        return self._mask.mask_bytes(codec.encode_canonical(value))


async def run_frame(
    frame: Frame,
    *,
    block: CompiledPipeline,
    context: CommandContext,
    services: CommandServices,
    may_leave_rows: bool,
    transaction: Transaction | None = None,
    resume: Resume | None = None,
) -> FrameResult:
    """Run a frame's body over all its rows, or once over the whole frame.

    Raises `FrameParked` when a row waits and the frame may; `resume` is how such a wait ended.
    """
    run = _FrameRun(
        frame=frame, block=block, context=context, services=services, transaction=transaction
    )
    if resume is not None:
        await run.resume_frame(resume)
    if frame.policy.process == "frame":
        await run.run_whole()
    else:
        await run.run_row_by_row(may_leave_rows=may_leave_rows)
    return await run.build_outcome()


class _FrameRun:
    """Gathers what becomes of a frame's rows."""

    def __init__(
        self,
        *,
        frame: Frame,
        block: CompiledPipeline,
        context: CommandContext,
        services: CommandServices,
        transaction: Transaction | None,
    ) -> None:
        self._frame = frame
        self._block = block
        self._context = context
        self._services = services
        self._transaction = transaction
        self._keeps_results = _collects_results(block)
        self._started_at = services.clock.monotonic_s()
        self._next = 0
        self._done_count = 0
        self._failed_count = 0
        self._error: ErrorObject | None = None
        self._patch: dict[str, Any] = {}
        self._metrics: MetricsByTask = {}
        is_bounded = frame.may_flush and frame.policy.process == "row"
        self._outputs = RowOutputs(
            payloads=services.payloads,
            mask=services.mask,
            bytes_max=frame.policy.max_bytes if is_bounded else 0,
        )
        self._lanes: list[asyncio.Task[None]] = []
        self._steady: dict[Any, Any] = {}
        self._waiting_rows: list[WaitingRow] = []

    async def resume_frame(self, resume: Resume) -> None:
        """Go on from where the frame was parked, with the row whose wait has ended."""
        state, resumed = await parked_work.load_parked_frame(resume, self._services)
        if state.frame_id != self._frame.frame_id:
            # Reports were lost, and the ledger knows an earlier frame as the open one.
            return
        self._next, self._done_count, self._failed_count = (state.next, state.done, state.failed)
        self._error, self._patch = state.error, dict(state.patch)
        self._metrics = state.metrics
        for index, value in state.results:
            await self._outputs.put_output(index, value)
        first, *waiting_rows = state.waiting
        now = self._services.clock.now()
        due_rows = [row for row in waiting_rows if is_time_over(row.wait, now)]
        self._waiting_rows = [row for row in waiting_rows if not is_time_over(row.wait, now)]
        await self._run_and_count(first.index, resumed)
        for row in due_rows:
            resumed_row = ResumedPipeline(saved=row.saved, status=ELAPSED, outcome=Outcome())
            await self._run_and_count(row.index, resumed_row)
        await self._park_frame()

    async def _park_frame(self) -> None:
        """Let the frame go while rows of it wait; what they are is kept in their order."""
        if not self._waiting_rows:
            return
        raise FrameParked(
            SavedFrame(
                frame_id=self._frame.frame_id,
                waiting=sort_waiting_rows(self._waiting_rows, self._services.clock.now()),
                next=self._next,
                done=self._done_count,
                failed=self._failed_count,
                error=self._error,
                patch=self._patch,
                results=await self._outputs.list_all(),
                metrics=self._metrics,
            )
        )

    async def run_whole(self) -> None:
        """Run the body once, with the list of rows as the iterator."""
        if not self._next:
            self._next = len(self._frame.rows)
            await self._run_and_count(None)
        await self._park_frame()

    async def _run_and_count(
        self, index: int | None, resumed: ResumedPipeline | None = None
    ) -> None:
        """Run a row, or the whole frame, and count it; one that waits is counted later."""
        end = await self._run_row(index, resumed)
        if end is None:
            return
        count = len(self._frame.rows) if index is None else 1
        self._done_count += count if end.error is None else 0
        self._failed_count += count if end.error is not None else 0

    async def run_row_by_row(self, *, may_leave_rows: bool) -> None:
        """Run the body once per row, `row_concurrency` rows at once, starting them in order."""
        lanes = min(self._frame.policy.row_concurrency, len(self._frame.rows))
        if lanes == 1:
            await self._run_rows(may_leave_rows)
            await self._park_frame()
            return
        async with open_task_group() as group:
            for _ in range(lanes):
                self._lanes.append(group.create_task(self._run_rows(may_leave_rows)))
        await self._park_frame()

    async def _run_rows(self, may_leave_rows: bool) -> None:  # noqa: FBT001 - the only argument
        rows = self._frame.rows
        while self._next < len(rows) and not self._waiting_rows:
            if may_leave_rows and self._next and self._is_time_over():
                return
            index = self._next
            self._next += 1
            failed = self._failed_count
            await self._run_and_count(index)
            if self._failed_count > failed and self._has_failed_too_often():
                self._stop_rows()
            if self._next == index + 1:
                # No other lane had a turn: rows that wait for nothing would never hear that they
                # are to stop.
                await asyncio.sleep(0)

    def _has_failed_too_often(self) -> bool:
        bound = self._frame.policy.failed_max
        return bound is not None and self._failed_count > bound

    def _stop_rows(self) -> None:
        """Start no further row, and cancel those that other lanes are at."""
        self._next = len(self._frame.rows)
        for lane in self._lanes:
            if lane is not asyncio.current_task():
                lane.cancel()

    def _is_time_over(self) -> bool:
        spent_s = self._services.clock.monotonic_s() - self._started_at
        return spent_s >= self._frame.policy.max_seconds

    async def _run_row(
        self, index: int | None, resumed: ResumedPipeline | None = None
    ) -> PipelineEnd | None:
        frame = self._frame
        fixed, iterators = build_frame_names(self._context, frame, row_index=index)
        row = None if index is None else frame.get_row_index(index)
        ctx = self._context.ctx
        unit = PipelineUnit(
            site=self._context.build_unit_scope(
                unit=frame.root_frame_id, row_index=row, frame_id=frame.frame_id
            ),
            fixed=fixed,
            iterators=iterators,
            ctx=ctx_references.overlay_ctx(ctx, self._patch)
            if self._sees_earlier_writes()
            else ctx,
            transaction=self._transaction,
            may_park=frame.may_park,
            place=f"{frame.attempt}.{'frame' if row is None else row}",
            steady=self._steady,
        )
        pipeline = Pipeline(
            block=self._block, unit=unit, context=self._context, services=self._services
        )
        try:
            end = await pipeline.run(resumed)
        except PipelineParked as parked:
            saved_row = await pipeline.build_saved()
            self._waiting_rows.append(WaitingRow(index=index, saved=saved_row, wait=parked.wait))
            return None
        self._patch.update(end.patch)
        self._metrics = add_task_metrics(self._metrics, end.metrics)
        if end.error is not None and self._error is None:
            self._error = _locate_error(end.error, frame, row)
        if self._keeps_results:
            plain = output_forms.to_plain(view_pipeline(end.result))
            await self._outputs.put_output(index or 0, _build_row_record(plain, end.error))
        return end

    def _sees_earlier_writes(self) -> bool:
        return bool(self._patch) and self._frame.policy.row_concurrency == 1

    async def build_outcome(self) -> FrameResult:
        """Return what became of the rows; raises `ToolFailure` when outputs cannot be kept."""
        _count_rows(self._done_count, "ok")
        _count_rows(self._failed_count, "failed")
        started_count = len(self._frame.rows[: self._next])
        outputs = self._outputs
        places = range(started_count) if self._has_failed_too_often() else outputs.row_indices
        kept_list = None
        if outputs.has_parts:
            kept_list = await self._services.keeper.store_result_pieces(
                lambda: outputs.iterate_pieces(places), row_count=len(places)
            )
        in_memory = self._keeps_results and kept_list is None
        return FrameResult(
            rows_done=self._done_count,
            rows_failed=self._failed_count,
            error=self._error,
            patch=self._patch,
            results=outputs.list_held(places) if in_memory else [],
            kept=kept_list,
            remaining=self._frame.rows[self._next :],
            duration_s=self._services.clock.monotonic_s() - self._started_at,
            rows_cancelled=started_count - self._done_count - self._failed_count,
            metrics=self._metrics,
        )


def _build_row_record(plain: Any, error: ErrorObject | None) -> Any:
    """Return a row's entry in the results: what it gave, under its error if it failed."""
    if error is None:
        return plain
    record = {"status": "error", "error": error_view.show_error(codec.to_builtins(error))}
    return {**plain, **record} if isinstance(plain, dict) else record


def _collects_results(block: CompiledPipeline) -> bool:
    loop = block.step.loop
    return loop is not None and loop.spec.collect == "all"


def _locate_error(error: ErrorObject, frame: Frame, row: int | None) -> ErrorObject:
    """Say in which frame and row an error happened."""
    place: dict[str, Any] = {"frame_id": frame.frame_id, "frame_attempt": frame.attempt}
    if row is not None:
        place["row_index"] = row
    return structs.replace(error, details={**(error.details or {}), **place})


def _count_rows(count: int, outcome: str) -> None:
    if count:
        instruments.add_to_counter(names.FRAME_ROWS, count, labels={names.OUTCOME: outcome})
