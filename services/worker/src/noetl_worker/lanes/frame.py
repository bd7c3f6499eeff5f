"""Runs one frame: its body over its rows, with bounded concurrency."""

import asyncio
from typing import Any

from msgspec import structs

from noetl_chassis import instruments, names
from noetl_chassis.together import together
from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_contracts.parking import ELAPSED, Resume
from noetl_contracts.task_metrics import MetricsByTask, add_tasks
from noetl_playbook import error_view, forms, kept
from noetl_playbook.views import pipeline_view
from noetl_worker.domain.frames import Frame, FrameResult
from noetl_worker.lanes import parking
from noetl_worker.lanes.block import Block
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.outputs import Outputs
from noetl_worker.lanes.parking import FrameParked, Parked, Resumed, SavedFrame, WaitingRow
from noetl_worker.lanes.pipeline import Pipeline, PipelineEnd
from noetl_worker.lanes.scratch import Unit
from noetl_worker.lanes.time_waits import in_order, is_over
from noetl_worker.lanes.unit import Surrounding, frame_names
from noetl_worker.tools.call import Outcome, Transaction


async def run_frame(
    frame: Frame,
    *,
    block: Block,
    surrounding: Surrounding,
    hands: Hands,
    may_leave_rows: bool,
    transaction: Transaction | None = None,
    resume: Resume | None = None,
) -> FrameResult:
    """Run a frame's body over all its rows, or once over the whole frame.

    Raises `FrameParked` when a row waits and the frame may; `resume` is how such a wait ended.
    """
    run = _Run(
        frame=frame, block=block, surrounding=surrounding, hands=hands, transaction=transaction
    )
    if resume is not None:
        await run.take_up(resume)
    if frame.policy.process == "frame":
        await run.whole()
    else:
        await run.row_by_row(may_leave_rows=may_leave_rows)
    return await run.outcome()


class _Run:
    """Gathers what becomes of a frame's rows."""

    def __init__(
        self,
        *,
        frame: Frame,
        block: Block,
        surrounding: Surrounding,
        hands: Hands,
        transaction: Transaction | None,
    ) -> None:
        self._frame = frame
        self._block = block
        self._surrounding = surrounding
        self._hands = hands
        self._transaction = transaction
        self._keeps_results = _collects(block)
        self._started_at = hands.clock.monotonic()
        self._next = 0
        self._done = 0
        self._failed = 0
        self._error: ErrorObject | None = None
        self._patch: dict[str, Any] = {}
        self._metrics: MetricsByTask = {}
        is_bounded = frame.may_flush and frame.policy.process == "row"
        self._outputs = Outputs(
            payloads=hands.payloads,
            mask=hands.mask,
            bytes_max=frame.policy.max_bytes if is_bounded else 0,
        )
        self._lanes: list[asyncio.Task[None]] = []
        self._steady: dict[Any, Any] = {}
        self._waiting: list[WaitingRow] = []

    async def take_up(self, resume: Resume) -> None:
        """Go on from where the frame was parked, with the row whose wait has ended."""
        saved, resumed = await parking.take_up_frame(resume, self._hands)
        if saved.frame_id != self._frame.frame_id:
            # Reports were lost, and the ledger knows an earlier frame as the open one.
            return
        self._next, self._done, self._failed = saved.next, saved.done, saved.failed
        self._error, self._patch = saved.error, dict(saved.patch)
        self._metrics = saved.metrics
        for index, value in saved.results:
            await self._outputs.put(index, value)
        first, *others = saved.waiting
        now = self._hands.clock.now()
        due = [row for row in others if is_over(row.wait, now)]
        self._waiting = [row for row in others if not is_over(row.wait, now)]
        await self._ran(first.index, resumed)
        for row in due:
            passed = Resumed(saved=row.saved, status=ELAPSED, outcome=Outcome())
            await self._ran(row.index, passed)
        await self._park()

    async def _park(self) -> None:
        """Let the frame go while rows of it wait; what they are is kept in their order."""
        if not self._waiting:
            return
        raise FrameParked(
            SavedFrame(
                frame_id=self._frame.frame_id,
                waiting=in_order(self._waiting, self._hands.clock.now()),
                next=self._next,
                done=self._done,
                failed=self._failed,
                error=self._error,
                patch=self._patch,
                results=await self._outputs.all(),
                metrics=self._metrics,
            )
        )

    async def whole(self) -> None:
        """Run the body once, with the list of rows as the iterator."""
        if not self._next:
            self._next = len(self._frame.rows)
            await self._ran(None)
        await self._park()

    async def _ran(self, index: int | None, resumed: Resumed | None = None) -> None:
        """Run a row, or the whole frame, and count it; one that waits is counted later."""
        end = await self._run(index, resumed)
        if end is None:
            return
        count = len(self._frame.rows) if index is None else 1
        self._done += count if end.error is None else 0
        self._failed += count if end.error is not None else 0

    async def row_by_row(self, *, may_leave_rows: bool) -> None:
        """Run the body once per row, `row_concurrency` rows at once, starting them in order."""
        lanes = min(self._frame.policy.row_concurrency, len(self._frame.rows))
        if lanes == 1:
            await self._one_after_another(may_leave_rows)
            await self._park()
            return
        async with together() as group:
            for _ in range(lanes):
                self._lanes.append(group.create_task(self._one_after_another(may_leave_rows)))
        await self._park()

    async def _one_after_another(self, may_leave_rows: bool) -> None:  # noqa: FBT001 - the only argument
        rows = self._frame.rows
        while self._next < len(rows) and not self._waiting:
            if may_leave_rows and self._next and self._is_over():
                return
            index = self._next
            self._next += 1
            failed = self._failed
            await self._ran(index)
            if self._failed > failed and self._has_failed_too_often():
                self._stop()
            if self._next == index + 1:
                # No other lane had a turn: rows that wait for nothing would never hear that they
                # are to stop.
                await asyncio.sleep(0)

    def _has_failed_too_often(self) -> bool:
        bound = self._frame.policy.failed_max
        return bound is not None and self._failed > bound

    def _stop(self) -> None:
        """Start no further row, and cancel those that other lanes are at."""
        self._next = len(self._frame.rows)
        for lane in self._lanes:
            if lane is not asyncio.current_task():
                lane.cancel()

    def _is_over(self) -> bool:
        spent_s = self._hands.clock.monotonic() - self._started_at
        return spent_s >= self._frame.policy.max_seconds

    async def _run(self, index: int | None, resumed: Resumed | None = None) -> PipelineEnd | None:
        frame = self._frame
        fixed, iterators = frame_names(self._surrounding, frame, row_index=index)
        row = None if index is None else frame.index_of(index)
        ctx = self._surrounding.ctx
        unit = Unit(
            site=self._surrounding.site(
                unit=frame.root_frame_id, row_index=row, frame_id=frame.frame_id
            ),
            fixed=fixed,
            iterators=iterators,
            ctx=kept.overlaid(ctx, self._patch) if self._sees_earlier_writes() else ctx,
            transaction=self._transaction,
            may_park=frame.may_park,
            place=f"{frame.attempt}.{'frame' if row is None else row}",
            steady=self._steady,
        )
        pipeline = Pipeline(
            block=self._block, unit=unit, surrounding=self._surrounding, hands=self._hands
        )
        try:
            end = await pipeline.run(resumed)
        except Parked as parked:
            saved = await pipeline.saved()
            self._waiting.append(WaitingRow(index=index, saved=saved, wait=parked.wait))
            return None
        self._patch.update(end.patch)
        self._metrics = add_tasks(self._metrics, end.metrics)
        if end.error is not None and self._error is None:
            self._error = _of_row(end.error, frame, row)
        if self._keeps_results:
            plain = forms.plain(pipeline_view(end.result))
            await self._outputs.put(index or 0, _failure_record(plain, end.error))
        return end

    def _sees_earlier_writes(self) -> bool:
        return bool(self._patch) and self._frame.policy.row_concurrency == 1

    async def outcome(self) -> FrameResult:
        """Return what became of the rows; raises `ToolFailure` when outputs cannot be kept."""
        _count_rows(self._done, "ok")
        _count_rows(self._failed, "failed")
        started = len(self._frame.rows[: self._next])
        outputs = self._outputs
        places = range(started) if self._has_failed_too_often() else outputs.rows
        kept_list = None
        if outputs.has_parts:
            kept_list = await self._hands.keeper.keep_pieces(
                lambda: outputs.pieces(places), row_count=len(places)
            )
        in_memory = self._keeps_results and kept_list is None
        return FrameResult(
            rows_done=self._done,
            rows_failed=self._failed,
            error=self._error,
            patch=self._patch,
            results=outputs.held(places) if in_memory else [],
            kept=kept_list,
            remaining=self._frame.rows[self._next :],
            duration_s=self._hands.clock.monotonic() - self._started_at,
            rows_cancelled=started - self._done - self._failed,
            metrics=self._metrics,
        )


def _failure_record(plain: Any, error: ErrorObject | None) -> Any:
    """Return a row's entry in the results: what it gave, under its error if it failed."""
    if error is None:
        return plain
    record = {"status": "error", "error": error_view.shown(codec.builtins(error))}
    return {**plain, **record} if isinstance(plain, dict) else record


def _collects(block: Block) -> bool:
    loop = block.step.loop
    return loop is not None and loop.spec.collect == "all"


def _of_row(error: ErrorObject, frame: Frame, row: int | None) -> ErrorObject:
    """Say in which frame and row an error happened."""
    place: dict[str, Any] = {"frame_id": frame.frame_id, "frame_attempt": frame.attempt}
    if row is not None:
        place["row_index"] = row
    return structs.replace(error, details={**(error.details or {}), **place})


def _count_rows(count: int, outcome: str) -> None:
    if count:
        instruments.count(names.FRAME_ROWS, count, labels={names.OUTCOME: outcome})
