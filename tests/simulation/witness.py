"""Sees every call that takes effect, and objects at once to what must never happen."""

import sys
from typing import Any

from msgspec import UNSET
from tests.simulation.broker import FaultyBroker
from tests.simulation.fate import Fate

from noetl_contracts import subjects
from noetl_contracts.errors import NoetlError
from noetl_contracts.events import get_event_type
from noetl_contracts.ledger import stored_event
from noetl_contracts.ledger.records import Append
from noetl_contracts.requests import facts
from noetl_messaging.memory.consumer import MemoryDelivery
from noetl_messaging.streams.ports import Message
from noetl_planner.facts.report_checks import ReportFault
from noetl_storage.memory.ledger import MemoryLedger
from noetl_storage.memory.outbox import MemoryOutbox
from noetl_storage.memory.projections import MemoryProjections
from noetl_storage.memory.store import MemoryStore
from noetl_worker.commands.fact_publisher import KEYS_SEPARATOR

_ENDS = ("command.completed", "command.failed", "command.cancelled")
# `command/attempt/delivery/number` is how a worker names what it publishes of its work.
_PARTS_OF_WORK = 4
# What was on its way when a lease ended.
_LATE_S = 1.5
_OVER = ("playbook.completed", "playbook.failed", "execution.cancelled")
# Defects that a service survives by design, and that must not be there.
_DEFECTS = frozenset(
    {
        "decision failed",
        "command failed with an internal error",
        "delivery not settled",
        "turn failed",
    }
)


class Witness:
    """Knows the store and the broker, and what the invariants say of each call."""

    def __init__(self, fate: Fate) -> None:
        self.fate = fate
        self.violations: list[str] = []
        self.store: MemoryStore
        self.broker: FaultyBroker
        # How far each command is: its latest attempt, and whether it has ended.
        self.attempts: dict[str, int] = {}
        self.ended: set[str] = set()
        # Attempts whose frames are to run again, and the command that each frame is run by.
        self._abandoned: set[tuple[str, int]] = set()
        # Attempts that wait: what a second delivery of one reports changes nothing.
        self._parked: set[tuple[str, int]] = set()
        self._batches: set[str] = set()
        # Items by run, and by the batch that they ended in.
        self._ended_items: set[tuple[str, int]] = set()
        self._batched_ends: set[tuple[str, int]] = set()
        self._command_by_frame: dict[str, str] = {}
        self.over: set[str] = set()
        # To whom a delivery of a command was handed last, and when.
        self.handed: dict[str, tuple[str, float]] = {}
        # Processes that stood still at some time: they may speak of what they no longer hold.
        self.held: set[str] = set()
        # When the call was made that takes effect now.
        self.sent_at = 0.0
        # Ends of commands that workers have reported.
        self._reported: set[tuple[str, int, str | None]] = set()
        # Positions beyond what a call is about to write.
        self._shown: dict[str, int] = {}
        self._worker_by_delivery: dict[str, str] = {}

    def object(self, text: str) -> None:
        """Note a violation."""
        self.fate.note("VIOLATION", text)
        self.violations.append(text)

    def process_ended(self, name: str, failure: Exception) -> None:
        """A process may end by an outage, but not by a defect."""
        self.fate.note(name, "ended:", type(failure).__name__)
        if _is_defect(failure):
            self.object(f"{name} ended: {_told(failure)}")

    def heard(self, words: dict[str, Any]) -> None:
        """Read a line of the log: some tell of defects that the service lives on with."""
        said = str(words.get("event"))
        failure = words.get("exc_info")
        failure = sys.exc_info()[1] if failure is True else failure
        if said in _DEFECTS and isinstance(failure, BaseException) and _is_defect(failure):
            self.object(f"{said}: {_told(failure)}")
        if said == "reports refused" and words.get("fault") != ReportFault.HOLDER:
            # Nobody forges any here. Of two messages of one attempt the second's worker is refused.
            self.object(f"a true report was refused: {words.get('latest')}")
        if said == "execution set aside":
            self.object(f"a projector set an execution aside: {words.get('reason')}")

    def before(self, who: str, target: Any, name: str, args: Any, kwargs: Any) -> None:
        """Look at a call that is about to take effect."""
        match target, name:
            case MemoryLedger(), "append":
                self._check_fence(who, args[0])
            case MemoryDelivery(), "ack":
                self._check_ack(who, target)
            case FaultyBroker(), "publish_message":
                for name_of_facts in args[0].message_id.split(KEYS_SEPARATOR):
                    self._check_holder(who, name_of_facts)
                self._note_reported(args[0])
            case MemoryOutbox(), "settle_rows":
                self._check_settled(who, args[0])
            case MemoryProjections(), "apply_rows":
                self._check_positions(who, kwargs["positions"])
            case _:
                pass

    def after(self, who: str, target: Any, name: str, args: Any, kwargs: Any, answer: Any) -> None:
        """Look at what a call has done."""
        if name == "append" and isinstance(target, MemoryLedger):
            self._note_appended(who, args[0])
        if name == "apply_rows" and isinstance(target, MemoryProjections):
            for execution_id, shown in self._shown.items():
                if self.store.position_by_execution[execution_id] < shown:
                    self.object(f"{who} takes the projection of {execution_id} back")
            self._shown.clear()

    def _check_fence(self, who: str, batch: Append) -> None:
        self._lease = self.store.lease_by_shard.get(batch.fence.shard)

    def _note_appended(self, who: str, batch: Append) -> None:
        lease, fence = self._lease, batch.fence
        is_held = (
            lease is not None
            and (lease.owner, lease.epoch) == (fence.owner, fence.epoch)
            and lease.leased_until > self.store.now()
        )
        if not is_held:
            self.object(f"{who} appended to shard {fence.shard}, which it does not hold")
        for stream in batch.streams:
            for envelope in stream.envelopes:
                kind = get_event_type(envelope.event)
                self.fate.note(
                    "  ",
                    stream.execution_id,
                    envelope.stream_version,
                    kind,
                    envelope.envelope_checksum[:12],
                )
                self._follow(stream.execution_id, kind, envelope.event)

    def _follow(self, execution_id: str, kind: str, event: Any) -> None:
        command_id = getattr(event, "command_id", None)
        attempt = getattr(event, "attempt", None)
        if kind in _OVER:
            if execution_id in self.over:
                self.object(f"execution {execution_id} ended twice")
            self.over.add(execution_id)
        self._follow_frame(kind, event)
        self._follow_batch(event)
        if command_id is None:
            return
        if kind in {"command.reissued", "command.resumed"}:
            self.attempts[command_id] = attempt
        if kind == "command.parked":
            self._parked.add((command_id, attempt))
        if kind in _ENDS:
            reported = (command_id, attempt, getattr(event, "worker_id", None))
            if kind == "command.completed" and reported not in self._reported:
                self._ended_by_frame(event, reported)
            if command_id in self.ended:
                self.object(f"command {command_id} ended twice")
            if kind == "command.completed" and attempt != self.attempts.get(command_id, 1):
                self.object(f"{command_id} was completed by attempt {attempt}, which is past")
            self.ended.add(command_id)

    def _follow_batch(self, event: Any) -> None:
        """The items of a batch end one by one, each once."""
        if getattr(event, "batch", None):
            self._batches.add(event.command_id)
        in_batch = getattr(event, "in_batch", None)
        if in_batch is not None:
            item = (event.run_id, event.item_index)
            if item in self._ended_items:
                self.object(f"item {item} ended twice")
            self._ended_items.add(item)
            self._batched_ends.add((in_batch.command_id, event.item_index))

    def _follow_frame(self, kind: str, event: Any) -> None:
        if kind == "frame.dispatched":
            self._command_by_frame[event.frame_id] = event.command_id
        if kind == "frame.abandoned" and event.frame_id in self._command_by_frame:
            self._abandoned.add((self._command_by_frame[event.frame_id], event.attempt))

    def _ended_by_frame(self, event: Any, reported: tuple[Any, ...]) -> None:
        """A command of a stage ends with its frame, a batch with its items; others as was said."""
        if event.stage_id is None and event.command_id not in self._batches:
            self.object(f"nobody has reported that {reported} is complete")

    def _check_ack(self, who: str, delivery: MemoryDelivery) -> None:
        subject = delivery.subject
        if subject.startswith("noetl.events."):
            batch = stored_event.decode_event_batch(delivery.data)
            shown = self.store.position_by_execution.get(batch.execution_id, 0)
            last = batch.events[-1].stream_version
            if shown < last:
                self.object(f"{who} acknowledged version {last}, projected is {shown}")
        if subject.startswith("noetl.ingest."):
            self._check_taken_in(who, facts.decode_fact_batch(delivery.data))

    def _check_taken_in(self, who: str, batch: facts.FactBatch) -> None:
        """A fact that ends an attempt shows in the history before its message is let go."""
        if batch.execution_id in self.over:
            return
        request = batch.request_id and self.store.request_by_id.get(batch.request_id)
        if request and request.settled_at is None:
            self.object(f"{who} acknowledged request {batch.request_id} before it was settled")
        for fact in batch.facts:
            if not isinstance(fact, facts.CommandCompleted | facts.CommandFailed):
                continue
            is_past = fact.attempt < self.attempts.get(fact.command_id, 1)
            # A frame whose body failed is only given up for now.
            is_past |= (fact.command_id, fact.attempt) in self._abandoned | self._parked
            if fact.item_index is not UNSET:
                is_past |= (fact.command_id, fact.item_index) in self._batched_ends
            if fact.command_id not in self.ended and not is_past:
                self.object(f"{who} acknowledged the end of {fact.command_id} and lost it")

    def _check_holder(self, who: str, key: str) -> None:
        """Facts of a command's work name the delivery's run: one worker works on it."""
        parts = key.split("/")
        if not who.startswith("worker") or len(parts) != _PARTS_OF_WORK:
            return
        holder, _, _ = parts[2].partition(".")
        if int(holder) in self.broker.forgotten:
            # Nobody can tell that it was handed to another.
            return
        if self._worker_by_delivery.setdefault(holder, who) != who:
            self.object(f"{who} runs delivery {holder}, which another worker has run")
        handed = self.handed.get(holder)
        if handed is None or handed[0] == who:
            return
        late_s = self.sent_at - handed[1]
        if late_s > _LATE_S and who not in self.held:
            self.object(f"{who} reports on delivery {holder}, which was handed to {handed[0]}")

    def _note_reported(self, message: Message) -> None:
        if message.subject.startswith(f"{subjects.INGEST}."):
            for fact in facts.decode_fact_batch(message.data).facts:
                if isinstance(fact, facts.CommandCompleted):
                    self._reported.add((fact.command_id, fact.attempt, fact.worker_id))

    def _check_settled(self, who: str, outbox_ids: Any) -> None:
        for outbox_id in outbox_ids:
            kept = self.store.message_by_id.get(outbox_id)
            if kept is not None and kept.row.message_id not in self.broker.taken:
                self.object(f"{who} removed outbox row {outbox_id}, which no stream has taken")

    def _check_positions(self, who: str, positions: dict[str, tuple[int, int]]) -> None:
        for execution_id, (_, new) in positions.items():
            if new < self.store.position_by_execution.get(execution_id, 0):
                self._shown[execution_id] = self.store.position_by_execution[execution_id]
            head = self.store.head_by_execution.get(execution_id)
            if head is None or new > head.version:
                self.object(f"{who} projects version {new} of {execution_id}, which is not there")


def _is_defect(failure: BaseException) -> bool:
    if isinstance(failure, BaseExceptionGroup):
        return any(_is_defect(exception) for exception in failure.exceptions)
    return not isinstance(failure, NoetlError | TimeoutError)


def _told(failure: BaseException) -> str:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return f"{type(failure).__name__}: {failure}"
