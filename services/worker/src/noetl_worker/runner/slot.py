"""A slot of a cursor loop: claim rows, record them, run them, report, until a claim is empty.

The order within one frame is what makes it recoverable: identity, claim (committed), rows and
record in the payload store, body. `FrameOpened` is told while the body runs and stored before
`FrameClosed` is told. The next attempt finds what a crash left behind under the same identity.
"""

import asyncio
from typing import Any

import structlog
from msgspec import Struct, structs

from noetl_chassis import loop as loop_module
from noetl_contracts import codec, ids
from noetl_contracts.commands.command_work import Command, SlotWork
from noetl_contracts.commands.waits import TIMEOUT_S_MAX, Resume
from noetl_contracts.ids import FrameId
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests.facts import FrameOpened, SlotDry
from noetl_playbook.model import coercion
from noetl_playbook.model.playbook import Loop
from noetl_playbook.templates.expressions import compile_value
from noetl_playbook.templates.scope import TemplateScope
from noetl_worker.commands.command_context import CommandContext, build_claim_scope, render_field
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.commands.fact_publisher import AttemptReporter
from noetl_worker.domain import frames
from noetl_worker.domain.failures import ToolFailure, build_error, is_unique_violation
from noetl_worker.domain.frames import (
    ForeignRows,
    Frame,
    FrameOutcome,
    FrameRecord,
    FrameResult,
    Row,
)
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline
from noetl_worker.runner.frame_outcome import (
    build_frame_closed,
    run_empty_frame,
    run_recorded_frame,
)
from noetl_worker.runner.frame_records import FrameRecords, RecordedFrame
from noetl_worker.tools.calls.call import Call, Timeout

_CLAIM_TRIES_MAX = 60
_CLAIM_RETRY_BASE_S = 0.1
_CLAIM_RETRY_MAX_S = 5.0
# How many indices a later attempt looks up before it claims, and one behind each that was used.
_DOUBTFUL_FRAMES = 3

log = structlog.get_logger(__name__)


class OpenedFrame(Struct, frozen=True, kw_only=True):
    """A frame ready to run; `attempts_before` are dispatches that nobody was told of."""

    frame: Frame
    attempts_before: int = 0


class Slot:
    """Runs one slot command."""

    def __init__(
        self,
        *,
        command: Command,
        work: SlotWork,
        block: CompiledPipeline,
        context: CommandContext,
        services: CommandServices,
        reporter: AttemptReporter,
        draining: asyncio.Event,
    ) -> None:
        self._command = command
        self._work = work
        self._block = block
        self._context = context
        self._services = services
        self._reporter = reporter
        self._draining = draining
        self._policy = frames.parse_policy(work.frame)
        self._frame_records = FrameRecords(
            command=command, payloads=services.payloads, mask=services.mask, holder=reporter.holder
        )
        self._rows_max = self._policy.max_rows
        self._frames = 0
        # Of the frame before the next one: how many of its rows that one is to go on with.
        self._rows_left = work.rows_left
        # Below it an earlier attempt may have used an index without our knowing.
        is_again = command.attempt > 1
        self._doubtful_until = work.next_index + _DOUBTFUL_FRAMES if is_again else 0

    async def run(self) -> bool:
        """Run frames until a claim is empty; False when the slot is given back unfinished.

        Raises `ToolFailure` when no claim can be made, `TakenElsewhere` when this is a copy, and
        `FrameParked` when a row waits.
        """
        index = self._work.next_index
        opened_frame = await self._resume_open_frame()
        resume = self._command.resume
        while True:
            if opened_frame is None:
                if self._draining.is_set():
                    return False
                opened_frame = await self._claim_frame(index)
            if opened_frame is None:
                self._report_dry(index)
                return True
            opened_frame = await self._run_frame(opened_frame, resume)
            resume = None
            index += 1

    async def _run_frame(
        self, opened_frame: OpenedFrame, resume: Resume | None
    ) -> OpenedFrame | None:
        """Run one frame and report it; return its continuation, if rows are left.

        Raises `FrameParked` when a row waits; `resume` is how the wait of the open frame ended.
        """
        frame = opened_frame.frame
        self._report_opened(opened_frame)
        frame_run = await self._execute_frame(frame, resume)
        self._frames += 1
        # At most one frame's facts are in flight, so a successor is never far behind.
        await self._reporter.flush_facts()
        rows_left = frame.rows[len(frame.rows) - frame_run.rows_left :]
        # Before the end is reported: the frame that continues from there finds the rows left.
        continuation = await self._record_continuation(frame, rows_left) if rows_left else None
        self._report_closed(
            frame, structs.replace(frame_run.result, remaining=rows_left), frame_run.envelope
        )
        self._rows_left = len(rows_left)
        return continuation

    async def _execute_frame(self, frame: Frame, resume: Resume | None) -> FrameOutcome:
        """Run a frame here or in a wave; raises `FrameLost` for one that a wave has lost."""
        if not frame.rows:
            return await run_empty_frame(self._block, self._services)
        may_leave_rows = not self._is_doubtful(frame.frame_index + 1)
        if self._services.waves is not None and frame.policy.inside is None:
            return await self._services.waves.run_slot_frame(
                self._command, frame, may_leave_rows=may_leave_rows
            )
        return await run_recorded_frame(
            frame,
            block=self._block,
            context=self._context,
            services=self._services,
            may_leave_rows=may_leave_rows,
            resume=resume,
        )

    async def _resume_open_frame(self) -> OpenedFrame | None:
        """Return the frame that the lost attempt left open, with exactly its rows."""
        open_frame = self._work.open_frame
        if open_frame is None:
            return None
        record = codec.convert_value(
            await self._services.payloads.load_value(open_frame.rows_ref), FrameRecord
        )
        dispatches = await self._frame_records.take_over_frame(open_frame.frame_id)
        unreported_dispatches = max(0, dispatches - open_frame.dispatches)
        if not open_frame.row_count:
            record = structs.replace(record, rows=[])
        frame = self._build_frame(
            open_frame.frame_index, open_frame.frame_id, record, open_frame.rows_ref
        )
        return OpenedFrame(
            frame=structs.replace(frame, attempt=open_frame.dispatches + unreported_dispatches + 1),
            attempts_before=unreported_dispatches,
        )

    async def _claim_frame(self, index: int) -> OpenedFrame | None:
        """Claim the next window of rows; None when there are none."""
        frame_id = ids.derive_frame_id(self._work.stage_id, slot=self._work.slot, frame_index=index)
        if self._is_doubtful(index):
            recorded_frame = await self._frame_records.find_recorded(frame_id)
            if recorded_frame is not None:
                return self._build_opened(index, frame_id, self._drop_done_rows(recorded_frame))
        rows = await self._claim_rows(index, frame_id)
        if not rows:
            return None
        return await self._record_frame(index, frame_id, rows, root_frame_id=frame_id)

    def _drop_done_rows(self, recorded_frame: RecordedFrame) -> RecordedFrame:
        """Take the rows from a continuation whose frame has left none when it ran once more.

        It was recorded by an attempt that ended before it told of it. Its index is used up, so it
        becomes a frame without rows.
        """
        is_done = recorded_frame.record.parent_frame_id is not None and self._rows_left == 0
        return (
            structs.replace(recorded_frame, record=structs.replace(recorded_frame.record, rows=[]))
            if is_done
            else recorded_frame
        )

    async def _record_continuation(self, parent: Frame, rows: list[Row]) -> OpenedFrame:
        """Record rows that were not started in time as the slot's next frame."""
        index = parent.frame_index + 1
        return await self._record_frame(
            index,
            ids.derive_frame_id(self._work.stage_id, slot=self._work.slot, frame_index=index),
            rows,
            root_frame_id=parent.root_frame_id,
            base_index=parent.base_index + len(parent.rows) - len(rows),
            parent_frame_id=parent.frame_id,
        )

    def _is_doubtful(self, index: int) -> bool:
        """Tell whether an earlier attempt may have used this index without our knowing."""
        return index < self._doubtful_until

    async def _record_frame(
        self,
        index: int,
        frame_id: FrameId,
        rows: list[Row],
        *,
        root_frame_id: FrameId,
        base_index: int = 0,
        parent_frame_id: FrameId | None = None,
    ) -> OpenedFrame:
        """Write the frame's record; one that is there already decides which rows run."""
        record = FrameRecord(
            rows=rows,
            fence=self._command.attempt,
            root_frame_id=root_frame_id,
            base_index=base_index,
            parent_frame_id=parent_frame_id,
            command_id=self._command.command_id,
            holder=self._reporter.holder,
        )
        recorded_frame = await self._frame_records.put_record(frame_id, record)
        self._rows_max = frames.compute_rows_max(
            self._policy, rows=len(rows), size_bytes=recorded_frame.offered_bytes
        )
        return self._build_opened(index, frame_id, recorded_frame)

    def _build_opened(
        self, index: int, frame_id: FrameId, recorded_frame: RecordedFrame
    ) -> OpenedFrame:
        frame = self._build_frame(index, frame_id, recorded_frame.record, recorded_frame.ref)
        if recorded_frame.dispatches:
            # The attempt that used this index may have used the next: also when reports were
            # refused, the indices of an attempt follow each other without a gap.
            self._doubtful_until = max(self._doubtful_until, index + 2)
        return OpenedFrame(
            frame=structs.replace(frame, attempt=recorded_frame.dispatches + 1),
            attempts_before=recorded_frame.dispatches,
        )

    def _build_frame(
        self, index: int, frame_id: FrameId, record: FrameRecord, rows_ref: PayloadRef
    ) -> Frame:
        return Frame(
            frame_id=frame_id,
            root_frame_id=record.root_frame_id,
            stage_id=self._work.stage_id,
            slot=self._work.slot,
            frame_index=index,
            base_index=record.base_index,
            attempt=1,
            rows_ref=rows_ref,
            rows=record.rows,
            policy=self._policy,
            policy_names=self._work.frame,
            parent_frame_id=record.parent_frame_id,
            may_flush=self._policy.inside is None,
            may_park=self._policy.inside is None and not self._policy.transaction,
        )

    async def _claim_rows(self, index: int, frame_id: FrameId) -> list[Row]:
        """Run the claim in its own transaction; raises `ToolFailure`.

        It may be repeated freely: under the same identity it takes the same rows.
        """
        call = await self._build_claim_call(index, frame_id)
        for tries in range(1, _CLAIM_TRIES_MAX + 1):
            outcome = await self._services.tools.run(call)
            if outcome.error is None and isinstance(outcome.data, dict):
                rows: list[Row] = outcome.data["rows"]
                self._check_rows(rows, frame_id)
                return rows
            error = outcome.error or build_error("internal", "the claim gave no rows")
            if tries == _CLAIM_TRIES_MAX:
                break
            if not is_unique_violation(error):
                if not error.retryable:
                    break
                log.warning("claim of rows failed", frame_id=frame_id, reason=error.message)
                await loop_module.sleep_backoff(
                    tries, base_s=_CLAIM_RETRY_BASE_S, max_s=_CLAIM_RETRY_MAX_S
                )
        raise ToolFailure(error)

    async def _build_claim_call(self, index: int, frame_id: FrameId) -> Call:
        cursor = self._cursor_loop.cursor
        assert cursor is not None, "only cursor loops have slots"
        bound = build_claim_scope(
            self._context,
            frame_id=frame_id,
            frame_index=index,
            slot=self._work.slot,
            policy={**self._work.frame, "max_rows": self._rows_max},
        )
        fields = {"query": await self._render_field(cursor.claim, bound, "claim")}
        if cursor.params is not None:
            fields["params"] = await self._render_field(cursor.params, bound, "params")
        timeout = await self._render_field(cursor.options.statement_timeout_s, bound, "options")
        return Call(
            site=self._context.build_unit_scope(unit=f"slot-{self._work.slot}", frame_id=frame_id),
            task="claim",
            kind="postgres",
            attempt=1,
            visit=1,
            fields=fields,
            input={},
            auth=await self._render_field(cursor.auth, bound, "auth"),
            timeout=Timeout(total=_parse_statement_timeout_s(timeout)),
        )

    async def _render_field(self, source: Any, bound: TemplateScope, field: str) -> Any:
        return await render_field(
            compile_value(source),
            bound,
            f"loop.cursor.{field}",
            context=self._context,
            payloads=self._services.payloads,
        )

    def _check_rows(self, rows: list[Row], frame_id: FrameId) -> None:
        try:
            frames.check_frame_rows(rows, frame_id)
        except ForeignRows as problem:
            raise ToolFailure(build_error("internal", str(problem), retryable=False)) from problem

    @property
    def _cursor_loop(self) -> Loop:
        loop = self._block.step.loop
        assert loop is not None, "only loops have slots"
        return loop

    def _report_opened(self, opened_frame: OpenedFrame) -> None:
        frame = opened_frame.frame
        self._reporter.report_facts(
            FrameOpened(
                command_id=self._command.command_id,
                attempt=self._command.attempt,
                worker_id=self._services.worker_id,
                stage_id=frame.stage_id,
                frame_id=frame.frame_id,
                slot=frame.slot,
                frame_index=frame.frame_index,
                row_count=len(frame.rows),
                rows_ref=frame.rows_ref,
                parent_frame_id=frame.parent_frame_id,
                attempts_before=opened_frame.attempts_before,
            ),
            lingers=True,
        )

    def _report_closed(
        self, frame: Frame, result: FrameResult, envelope: ResultEnvelope | None
    ) -> None:
        self._reporter.report_facts(
            build_frame_closed(self._command, self._services, frame, result, envelope), lingers=True
        )

    def _report_dry(self, index: int) -> None:
        self._reporter.report_facts(
            SlotDry(
                command_id=self._command.command_id,
                attempt=self._command.attempt,
                worker_id=self._services.worker_id,
                frames=self._frames,
                next_index=index,
            )
        )


def _parse_statement_timeout_s(value: Any) -> float:
    """Read how long a claim may take, as it was rendered; raises `ToolFailure`."""
    seconds = coercion.coerce_number(value)
    if seconds is None or not 0 < seconds <= TIMEOUT_S_MAX:
        text = (
            f"loop.cursor.options.statement_timeout_s: {value!r:.80} is no number of seconds above "
            f"0, of {TIMEOUT_S_MAX} at most"
        )
        raise ToolFailure(build_error("validation", text))
    return float(seconds)
