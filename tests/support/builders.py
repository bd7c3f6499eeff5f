"""Histories as the planner writes them, event by event."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs

from noetl_contracts import codec, ids
from noetl_contracts.commands.waits import ChildWait, MessageWait
from noetl_contracts.errors import ErrorObject
from noetl_contracts.events import (
    Event,
    command_events,
    execution_events,
    frame_events,
    loop_events,
    step_events,
)
from noetl_contracts.ids import (
    CatalogId,
    CommandId,
    EventId,
    ExecutionId,
    FrameId,
    OrganizationId,
    RunId,
    StageId,
    TenantId,
    WorkerId,
)
from noetl_contracts.ledger import envelope
from noetl_contracts.ledger.envelope import Envelope, EventBatch
from noetl_contracts.ledger.records import StreamAppend
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.status import RunStatus, StageKind, StageStatus

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TENANT = TenantId("acme")
ORGANIZATION = OrganizationId("west")
WORKER = WorkerId("worker-1")
OTHER_WORKER = WorkerId("worker-2")
FIRST_EXECUTION = ExecutionId("264905529753600000")
MS_PER_EVENT = 5


def an_error(message: str = "no answer") -> ErrorObject:
    return ErrorObject(kind="timeout", message=message, retryable=True)


def a_result(value: Any = None) -> ResultEnvelope:
    return ResultEnvelope(status="ok", context={"data": value})


def a_ref(rows: int, seed: str) -> PayloadRef:
    digest = codec.digest_hex(seed.encode())
    return PayloadRef(
        uri=f"noetl://{TENANT}/{ORGANIZATION}/payloads/sha256/{digest}",
        sha256=digest,
        media_type="application/json",
        payload_bytes=100 * rows,
        row_count=rows,
    )


class History:
    """An execution's envelopes, sealed as they are added."""

    def __init__(self, execution_id: ExecutionId = FIRST_EXECUTION) -> None:
        self.execution_id = execution_id
        self.envelopes: list[Envelope] = []
        self._activation = 0

    def add(self, *events: Event) -> None:
        for event in events:
            version = len(self.envelopes) + 1
            kind, aggregate = envelope.find_aggregate(self.execution_id, event)
            open_envelope = Envelope(
                event_id=EventId(str(int(self.execution_id) + version)),
                tenant_id=TENANT,
                organization_id=ORGANIZATION,
                execution_id=self.execution_id,
                stream_id=f"execution/{self.execution_id}",
                stream_version=version,
                aggregate_id=aggregate,
                aggregate_type=kind,
                schema_name=envelope.build_schema_name(event),
                schema_version=envelope.get_schema_version(event),
                event_time=NOON + timedelta(milliseconds=MS_PER_EVENT * version),
                producer="planner/test",
                event=event,
            )
            before = self.envelopes[-1].envelope_checksum if self.envelopes else ""
            self.envelopes.append(envelope.seal_envelope(open_envelope, before))

    def batches(self, *, size: int) -> list[EventBatch]:
        """Cut the history into messages of `NOETL_EVENTS`."""
        return [
            a_batch(self.envelopes[start : start + size])
            for start in range(0, len(self.envelopes), size)
        ]

    def stream(self, *, after: int = 0, until: int | None = None) -> StreamAppend:
        """A part of the history as a planner appends it."""
        return StreamAppend(
            execution_id=self.execution_id,
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
            expected_version=after,
            envelopes=self.envelopes[after:until],
        )

    def start(
        self,
        *,
        entry: str = "fetch",
        workload: dict[str, Any] | None = None,
        expires_at: datetime | None = None,
    ) -> None:
        self.add(
            execution_events.PlaybookInitialized(
                path="examples/story",
                catalog_id=CatalogId("1"),
                catalog_version=1,
                playbook_digest=codec.digest_hex(b"story"),
                entry_step=entry,
                workload=workload or {"pages": 3},
                ctx={"seen": 0},
                expires_at=expires_at,
            )
        )

    def enter(
        self, name: str, *, came_from: str | None = None, expires_at: datetime | None = None
    ) -> RunId:
        self._activation += 1
        run = ids.derive_run_id(self.execution_id, self._activation)
        self.add(
            step_events.StepEnter(
                step=name,
                run_id=run,
                activation=self._activation,
                came_from=came_from,
                expires_at=expires_at,
            )
        )
        return run

    def leave(self, name: str, run: RunId, *targets: str, failed: bool = False) -> None:
        self.add(
            step_events.StepExit(
                step=name,
                run_id=run,
                status=RunStatus.FAILED if failed else RunStatus.COMPLETED,
                targets=list(targets),
                patch={} if failed else {"last": name},
                is_handled=not failed,
                error=an_error() if failed else None,
            )
        )

    def issue(self, name: str, run: RunId, unit: str, **fields: Any) -> CommandId:
        command_id = ids.derive_command_id(run, unit)
        self.add(
            command_events.CommandIssued(
                command_id=command_id,
                run_id=run,
                step=name,
                unit=unit,
                pool="default",
                lane="io",
                attempts_max=3,
                **fields,
            )
        )
        return command_id

    def begin(self, name: str, run: RunId, command_id: CommandId, *, attempt: int = 1) -> None:
        self.add(
            command_events.CommandStarted(
                command_id=command_id,
                run_id=run,
                step=name,
                attempt=attempt,
                worker_id=WORKER if attempt == 1 else OTHER_WORKER,
                locality={"node": "n1"},
            )
        )

    def lose(self, name: str, run: RunId, command_id: CommandId, *, attempt: int) -> None:
        self.add(
            command_events.CommandReissued(
                command_id=command_id,
                run_id=run,
                step=name,
                attempt=attempt,
                reason="redelivered",
                previous_worker=WORKER,
            )
        )

    def complete(
        self, name: str, run: RunId, command_id: CommandId, *, attempt: int = 1, **fields: Any
    ) -> None:
        self.add(
            command_events.CommandCompleted(
                command_id=command_id,
                run_id=run,
                step=name,
                attempt=attempt,
                worker_id=WORKER,
                **fields,
            )
        )

    def finish(self, *, last: str = "fetch") -> None:
        self.add(execution_events.PlaybookCompleted(step=last, result=a_result({"pages": 3})))


def nested(history: History) -> History:
    """The same history, in an execution that stage 77 of another one called; seals stay."""
    history.envelopes = [
        structs.replace(
            envelope, event=structs.replace(envelope.event, parent_stage_id=StageId("77"))
        )
        if isinstance(envelope.event, loop_events.StageOpened)
        else envelope
        for envelope in history.envelopes
    ]
    return history


def a_batch(envelopes: list[Envelope]) -> EventBatch:
    return EventBatch(
        execution_id=envelopes[0].execution_id,
        tenant_id=envelopes[0].tenant_id,
        organization_id=envelopes[0].organization_id,
        first_version=envelopes[0].stream_version,
        last_version=envelopes[-1].stream_version,
        events=envelopes,
    )


def run_step(
    history: History, name: str, *targets: str, attempts: int = 1, failed: bool = False
) -> None:
    """One activation with one command, lost `attempts - 1` times before."""
    run = history.enter(name)
    command_id = history.issue(name, run, "step")
    for attempt in range(1, attempts):
        history.begin(name, run, command_id, attempt=attempt)
        history.lose(name, run, command_id, attempt=attempt + 1)
    history.begin(name, run, command_id, attempt=attempts)
    if failed:
        history.add(
            command_events.CommandFailed(
                command_id=command_id,
                run_id=run,
                step=name,
                attempt=attempts,
                error=an_error(),
                worker_id=WORKER,
            ),
            step_events.CallError(step=name, run_id=run, command_id=command_id, error=an_error()),
        )
    else:
        history.complete(name, run, command_id, attempt=attempts)
        history.add(
            step_events.CallDone(
                step=name,
                run_id=run,
                command_id=command_id,
                result=a_result({"rows": 2}),
                patch={"seen": attempts},
            )
        )
    history.leave(name, run, *targets, failed=failed)


def run_items(history: History, name: str, *targets: str, items: int, failing: int = 0) -> None:
    """A loop over a collection; the first `failing` items fail."""
    run = history.enter(name)
    history.add(
        loop_events.LoopStarted(
            step=name,
            run_id=run,
            mode="parallel",
            max_in_flight=2,
            total=items,
            collection=list(range(items)),
        )
    )
    for index in range(items):
        command_id = history.issue(name, run, f"item-{index}", item_index=index)
        history.begin(name, run, command_id)
        history.complete(name, run, command_id)
        outcome: Event
        if index < failing:
            outcome = step_events.CallError(
                step=name, run_id=run, command_id=command_id, error=an_error(), item_index=index
            )
        else:
            outcome = step_events.CallDone(
                step=name,
                run_id=run,
                command_id=command_id,
                result=a_result(index),
                item_index=index,
            )
        history.add(outcome)
    stats = loop_events.LoopStats(total=items, success=items - failing, failed=failing)
    history.add(loop_events.LoopDone(step=name, run_id=run, stats=stats, result=a_result(items)))
    history.leave(name, run, *targets)


class Slots:
    """A cursor loop: slots that take frames until every one of them is dry."""

    def __init__(self, history: History, name: str, *, slots: int) -> None:
        self.history, self.name, self.slots = history, name, slots
        self.run = history.enter(name)
        self.stage: StageId = ids.derive_stage_id(self.run)
        self.frames = self.rows = self.frames_failed = 0
        history.add(
            loop_events.LoopStarted(
                step=name, run_id=self.run, mode="cursor", max_in_flight=slots, stage_id=self.stage
            ),
            loop_events.StageOpened(
                stage_id=self.stage,
                run_id=self.run,
                step=name,
                kind=StageKind.LOOP,
                slots=slots,
                frame_policy={"max_rows": 10},
            ),
        )
        self.commands = [self._issue(slot) for slot in range(slots)]

    def take(self, slot: int, index: int, *, rows: int, losses: int = 0, bad: int = 0) -> None:
        """One frame of a slot: dispatched, lost so often, then committed or failed."""
        command_id = self.commands[slot]
        frame_id = ids.derive_frame_id(self.stage, slot=slot, frame_index=index)
        for attempt in range(1, losses + 2):
            self._dispatch(frame_id, slot, index, rows=rows, attempt=attempt)
            if attempt <= losses:
                self.history.add(
                    frame_events.FrameAbandoned(
                        frame_id=frame_id,
                        stage_id=self.stage,
                        step=self.name,
                        attempt=attempt,
                        reason="redelivered",
                        previous_worker=WORKER,
                    )
                )
                self.history.lose(self.name, self.run, command_id, attempt=attempt + 1)
        self._end(frame_id, slot, index, rows=rows, attempt=losses + 1, bad=bad)

    def beat(self, slot: int, index: int, *, rows: int) -> None:
        """A frame that gives a sign of life and then fails."""
        frame_id = ids.derive_frame_id(self.stage, slot=slot, frame_index=index)
        self._dispatch(frame_id, slot, index, rows=rows, attempt=1)
        self.history.add(
            frame_events.FrameHeartbeat(
                frame_id=frame_id,
                stage_id=self.stage,
                step=self.name,
                attempt=1,
                worker_id=WORKER,
                rows_done=1,
            )
        )
        self._end(frame_id, slot, index, rows=rows, attempt=1, bad=rows)

    def close(self, *targets: str) -> None:
        for slot, command_id in enumerate(self.commands):
            self.history.complete(self.name, self.run, command_id, slot=slot, is_dry=True)
        stats = loop_events.LoopStats(
            total=self.rows, success=self.rows, frames=self.frames, rows_claimed=self.rows
        )
        self.history.add(
            loop_events.StageClosed(
                stage_id=self.stage,
                run_id=self.run,
                step=self.name,
                status=StageStatus.COMPLETED,
                frames=self.frames,
                rows=self.rows,
                frames_failed=self.frames_failed,
            ),
            loop_events.LoopDone(
                step=self.name,
                run_id=self.run,
                stats=stats,
                result=a_result(self.rows),
                stage_id=self.stage,
            ),
        )
        self.history.leave(self.name, self.run, *targets)

    def _issue(self, slot: int) -> CommandId:
        command_id = self.history.issue(
            self.name, self.run, f"slot-{slot}-1", stage_id=self.stage, slot=slot
        )
        self.history.begin(self.name, self.run, command_id)
        return command_id

    def _dispatch(
        self, frame_id: FrameId, slot: int, index: int, *, rows: int, attempt: int
    ) -> None:
        self.history.add(
            frame_events.FrameDispatched(
                frame_id=frame_id,
                stage_id=self.stage,
                step=self.name,
                command_id=self.commands[slot],
                slot=slot,
                frame_index=index,
                attempt=attempt,
                fence=attempt,
                row_count=rows,
                rows_ref=a_ref(rows, f"{frame_id}"),
                worker_id=WORKER if attempt == 1 else OTHER_WORKER,
            ),
            frame_events.FrameStarted(
                frame_id=frame_id,
                stage_id=self.stage,
                step=self.name,
                attempt=attempt,
                worker_id=WORKER,
            ),
        )

    def _end(
        self, frame_id: FrameId, slot: int, index: int, *, rows: int, attempt: int, bad: int
    ) -> None:
        self.frames += 1
        self.rows += rows
        shared: dict[str, Any] = {
            "frame_id": frame_id,
            "stage_id": self.stage,
            "step": self.name,
            "slot": slot,
            "frame_index": index,
            "attempt": attempt,
            "row_count": rows,
            "worker_id": WORKER,
            "metrics": {"duration_ms": 12},
        }
        if bad:
            self.frames_failed += 1
            self.history.add(frame_events.FrameFailed(rows_failed=bad, error=an_error(), **shared))
        else:
            self.history.add(frame_events.FrameCommitted(result=a_result(rows), **shared))


def changed_files() -> History:
    """Two steps that change files of their execution."""
    history = History()
    history.start()
    run_step(history, "fetch", "save")
    history.add(execution_events.FilesChanged(entries=1))
    run_step(history, "save")
    history.finish()
    return history


def a_single_step() -> History:
    """One step, one command."""
    history = History()
    history.start()
    run_step(history, "fetch")
    history.finish()
    return history


def a_shop() -> History:
    """Orders that steps bring about, change and remove; one is brought about again."""
    history = History()
    history.start()
    run = history.enter("fetch")

    def order(number: int, status: str, *, rows: int = 0, **attributes: Any) -> None:
        history.add(
            execution_events.BusinessObjectChanged(
                object_type="order",
                object_id=f"order/{number}",
                step="fetch",
                run_id=run,
                status=status,
                attributes=attributes,
                result_ref=a_ref(rows, f"orders-{rows}") if rows else None,
                is_deleted=status == "cancelled",
            )
        )

    order(1, "placed", total=12.5, lines=[{"sku": "a"}])
    order(2, "placed", rows=3, total=7)
    order(1, "paid", rows=5, paid=True)
    order(2, "cancelled")
    order(1, "shipped", total=11, carrier={"name": "x"})
    order(2, "placed", rows=3, total=8)
    history.leave("fetch", run)
    history.finish()
    return history


def a_lost_worker() -> History:
    """A command whose worker died once, and a fact of it that came too late."""
    history = History()
    history.start()
    run = history.enter("fetch")
    command_id = history.issue("fetch", run, "step")
    history.begin("fetch", run, command_id)
    history.lose("fetch", run, command_id, attempt=2)
    history.add(
        command_events.CommandRejected(
            command_id=command_id,
            attempt=1,
            current_attempt=2,
            fact="command_completed",
            reason="stale fence",
            worker_id=WORKER,
        )
    )
    history.begin("fetch", run, command_id, attempt=2)
    history.complete("fetch", run, command_id, attempt=2)
    history.add(
        step_events.CallDone(
            step="fetch", run_id=run, command_id=command_id, result=a_result({"n": 1})
        )
    )
    history.leave("fetch", run)
    history.finish()
    return history


def an_item_loop() -> History:
    """A loop over four items, one of which fails, and a step after it."""
    history = History()
    history.start(entry="each")
    run_items(history, "each", "sum", items=4, failing=1)
    run_step(history, "sum")
    history.finish(last="sum")
    return history


def a_cursor_loop() -> History:
    """Two slots, five frames, one of them lost once and one with failed rows."""
    history = History()
    history.start(entry="drain")
    slots = Slots(history, "drain", slots=2)
    slots.take(0, 0, rows=10)
    slots.take(1, 0, rows=10, losses=1)
    slots.take(0, 1, rows=10, bad=2)
    slots.take(1, 1, rows=7)
    slots.take(0, 2, rows=1)
    slots.close("report")
    run_step(history, "report")
    history.finish(last="report")
    return history


def a_failed_run() -> History:
    """A step that fails and that no arc handles."""
    history = History()
    history.start()
    run_step(history, "fetch", attempts=2, failed=True)
    history.add(execution_events.PlaybookFailed(error=an_error(), step="fetch"))
    return history


def a_cancelled_run() -> History:
    """A run that is called off while a command runs."""
    history = History()
    history.start()
    run = history.enter("fetch")
    command_id = history.issue("fetch", run, "step")
    history.begin("fetch", run, command_id)
    history.add(
        execution_events.CtxPatched(patch={"seen": 7}, requested_by="ops"),
        execution_events.CancelRequested(reason="wrong input", requested_by="ops"),
        command_events.CommandCancelled(
            command_id=command_id, run_id=run, step="fetch", attempt=1, reason="wrong input"
        ),
        execution_events.ExecutionCancelled(reason="wrong input"),
    )
    return history


def a_failed_loop() -> History:
    """A cursor loop with signs of life, a late commit, and a slot that cannot go on."""
    history = History()
    history.start(entry="drain")
    slots = Slots(history, "drain", slots=1)
    slots.take(0, 0, rows=4)
    frame_id = ids.derive_frame_id(slots.stage, slot=0, frame_index=0)
    command_id = slots.commands[0]
    history.add(
        command_events.CommandHeartbeat(
            command_id=command_id, run_id=slots.run, step="drain", attempt=1, worker_id=WORKER
        ),
        frame_events.FrameCommitRejected(
            frame_id=frame_id,
            stage_id=slots.stage,
            step="drain",
            attempt=1,
            current_attempt=2,
            reason="terminal",
            worker_id=WORKER,
        ),
    )
    slots.beat(0, 1, rows=4)
    history.add(
        command_events.CommandFailed(
            command_id=command_id,
            run_id=slots.run,
            step="drain",
            attempt=1,
            error=an_error(),
            worker_id=WORKER,
            slot=0,
        ),
        loop_events.StageClosed(
            stage_id=slots.stage,
            run_id=slots.run,
            step="drain",
            status=StageStatus.FAILED,
            frames=slots.frames,
            rows=slots.rows,
            frames_failed=slots.frames_failed,
        ),
        loop_events.LoopFailed(
            step="drain",
            run_id=slots.run,
            stats=loop_events.LoopStats(total=8, success=4, failed=4),
            error=an_error(),
            stage_id=slots.stage,
        ),
    )
    history.leave("drain", slots.run, failed=True)
    history.add(execution_events.PlaybookFailed(error=an_error(), step="drain"))
    return history


def a_held_run() -> History:
    """A run that is paused, resumed, written to from outside, and announces its step's end."""
    history = History()
    history.start(expires_at=NOON + timedelta(hours=1))
    run = history.enter("fetch", expires_at=NOON + timedelta(minutes=1))
    command_id = history.issue("fetch", run, "step")
    history.begin("fetch", run, command_id)
    history.add(
        execution_events.ExecutionPaused(request_id="pause-1", reason="a look", requested_by="ops"),
        command_events.CommandReissued(
            command_id=command_id, run_id=run, step="fetch", attempt=2, reason="released"
        ),
        execution_events.CtxPatched(
            patch={"seen": 7, "kept": 1}, requested_by="ops", request_id="write-1"
        ),
        execution_events.CtxPatched(
            patch={}, removed=["seen"], requested_by="ops", request_id="write-2"
        ),
        execution_events.ExecutionResumed(request_id="resume-1", requested_by="ops"),
        execution_events.CustomEvent(name="fetched", step="fetch", run_id=run, status="COMPLETED"),
        execution_events.CancelRequested(reason="enough", requested_by="ops", cascade=False),
        command_events.CommandCancelled(
            command_id=command_id,
            run_id=run,
            step="fetch",
            attempt=2,
            reason="enough",
            error=ErrorObject(kind="cancelled", code="CANCELLED", message="enough"),
        ),
        execution_events.ExecutionCancelled(reason="enough"),
    )
    return history


def a_repeated_run() -> History:
    """A run that begins at a step of another one, with what that one had before it."""
    history = History()
    history.add(
        execution_events.PlaybookInitialized(
            path="examples/story",
            catalog_id=CatalogId("1"),
            catalog_version=1,
            playbook_digest=codec.digest_hex(b"story"),
            entry_step="sum",
            workload={"pages": 3},
            source=execution_events.RerunSource(
                execution_id=FIRST_EXECUTION, version=12, step="sum"
            ),
            came_from="fetch",
        ),
        execution_events.StateInherited(
            part=0,
            ctx={"seen": 3},
            steps=[
                execution_events.InheritedStep(
                    step="fetch",
                    run_id=RunId("77"),
                    status=RunStatus.COMPLETED,
                    result=ResultEnvelope(status="ok", context={"data": {"pages": 3}}),
                ),
                execution_events.InheritedStep(
                    step="probe", run_id=RunId("78"), status=RunStatus.FAILED, error=an_error()
                ),
            ],
        ),
    )
    run_step(history, "sum")
    history.add(execution_events.PlaybookCompleted(step="sum"))
    return history


def a_waiting_parent() -> History:
    """A command that waits for a child, is resumed by its end, and starts another on its way."""
    history = History()
    history.start(entry="call")
    run = history.enter("call")
    command_id = history.issue("call", run, "step")
    history.begin("call", run, command_id)
    for attempt, is_awaited in ((1, True), (2, False)):
        child = ExecutionId(f"26490552975360099{attempt}")
        wait = ChildWait(
            key=f"ask/{attempt}/1",
            task="ask",
            path="a/child",
            timeout_s=60.0,
            workload={"n": attempt},
            is_awaited=is_awaited,
        )
        history.add(
            command_events.CommandParked(
                command_id=command_id,
                run_id=run,
                step="call",
                attempt=attempt,
                worker_id=WORKER,
                resume_ref=a_ref(1, f"parked-{attempt}"),
                wait=wait,
            ),
            command_events.ChildStarted(
                child_execution_id=child,
                command_id=command_id,
                run_id=run,
                step="call",
                wait=wait,
            ),
        )
        if is_awaited:
            history.add(
                command_events.ChildEnded(
                    child_execution_id=child,
                    command_id=command_id,
                    step="call",
                    key=wait.key,
                    status="COMPLETED",
                )
            )
        history.add(
            command_events.CommandResumed(
                command_id=command_id,
                run_id=run,
                step="call",
                attempt=attempt + 1,
                key=wait.key,
                status="COMPLETED" if is_awaited else "started",
                child_execution_id=child,
                result=a_result({"n": 1}) if is_awaited else None,
            )
        )
        history.begin("call", run, command_id, attempt=attempt + 1)
    history.complete("call", run, command_id, attempt=3)
    history.add(
        step_events.CallDone(
            step="call", run_id=run, command_id=command_id, result=a_result({"n": 1})
        )
    )
    history.leave("call", run)
    history.finish(last="call")
    return history


def an_outside_message() -> History:
    """A command that waits for a message until its time is over, and then for another one."""
    history = History()
    history.start(entry="hold")
    run = history.enter("hold")
    command_id = history.issue("hold", run, "step")
    for attempt, status in ((1, "timeout"), (2, "delivered")):
        history.begin("hold", run, command_id, attempt=attempt)
        wait = MessageWait(
            key=f"hold/1/{attempt}",
            task="hold",
            mode="approval",
            address=f"approval/{attempt}",
            timeout_s=60.0,
            is_timeout_ok=True,
            cancels=True,
            schema={"n": "integer"},
            title="Sure?",
            options=["yes", "no"],
        )
        history.add(
            command_events.CommandParked(
                command_id=command_id,
                run_id=run,
                step="hold",
                attempt=attempt,
                worker_id=WORKER,
                resume_ref=a_ref(1, f"held-{attempt}"),
                wait=wait,
            ),
            command_events.CommandResumed(
                command_id=command_id,
                run_id=run,
                step="hold",
                attempt=attempt + 1,
                key=wait.key,
                status=status,
                result=a_result({"n": 1}) if status == "delivered" else None,
            ),
        )
    history.begin("hold", run, command_id, attempt=3)
    history.complete("hold", run, command_id, attempt=3)
    history.add(
        step_events.CallDone(
            step="hold", run_id=run, command_id=command_id, result=a_result({"n": 1})
        )
    )
    history.leave("hold", run)
    history.finish(last="hold")
    return history


def a_refused_run() -> History:
    """A step that runs once and is then not admitted; an arc handles that."""
    history = History()
    history.start(entry="guarded")
    run_step(history, "guarded", "guarded")
    run = history.enter("guarded")
    error = ErrorObject(kind="policy", code="POLICY", step="guarded", message="not admitted")
    history.add(
        step_events.StepFailed(step="guarded", run_id=run, error=error),
        step_events.StepExit(
            step="guarded", run_id=run, status=RunStatus.FAILED, targets=["after"]
        ),
    )
    run_step(history, "after")
    history.finish(last="after")
    return history


STORIES = {
    "shop": a_shop,
    "refused-run": a_refused_run,
    "repeated-run": a_repeated_run,
    "held-run": a_held_run,
    "outside-message": an_outside_message,
    "waiting-parent": a_waiting_parent,
    "failed-loop": a_failed_loop,
    "single-step": a_single_step,
    "changed-files": changed_files,
    "lost-worker": a_lost_worker,
    "item-loop": an_item_loop,
    "cursor-loop": a_cursor_loop,
    "failed-run": a_failed_run,
    "cancelled-run": a_cancelled_run,
}


def stories() -> Iterator[tuple[str, History]]:
    """Every story with its name."""
    for name, tell in STORIES.items():
        yield name, tell()
