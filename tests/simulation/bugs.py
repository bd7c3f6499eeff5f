"""Defects that are planted to see whether the simulation finds them: one patch each."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from msgspec import Struct, structs

from noetl_contracts.events.loop_events import LoopDone, LoopFailed
from noetl_contracts.ledger.records import Request
from noetl_outbox import domain as outbox_domain
from noetl_outbox.domain import BatchVerdict
from noetl_planner.domain import command_facts
from noetl_planner.domain.decision import draft
from noetl_planner.domain.steps import commands
from noetl_planner.loops.queue import LoopQueue
from noetl_planner.service import ShardPlanner
from noetl_projector.domain import version_order
from noetl_projector.domain.version_order import VersionGap
from noetl_projector.projection.event_intake import FetchedBatch
from noetl_projector.service import Projector
from noetl_reaper.service import Reaper
from noetl_storage.memory.ledger import MemoryLedger
from noetl_storage.memory.outbox import MemoryOutbox, MemoryRequests
from noetl_storage.memory.projections import MemoryProjections
from noetl_storage.memory.store import MemoryStore, StoredRequest
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker.domain import lease_terms
from noetl_worker.payloads.result_store import ResultStore
from noetl_worker.pipeline.chunk_emitter import ChunkEmitter
from noetl_worker.runner.command_host import CommandHost

Patch = tuple[Any, str, Any]


class Bug(Struct, frozen=True, kw_only=True):
    """A defect: what is wrong, which invariant it breaks, and how it is made.

    It shows only in weather that has the faults that it `needs`.
    """

    name: str
    breaks: str
    make: Callable[[], list[Patch]]
    needs: tuple[str, ...] = ()

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Have the defect in every process while the block lasts."""
        with ExitStack() as stack:
            for target, attribute, broken in self.make():
                stack.enter_context(mock.patch.object(target, attribute, broken))
            yield


def _planner_acks_first() -> list[Patch]:
    commit = ShardPlanner._commit_decisions

    async def broken(self: ShardPlanner, decided: list[Any]) -> None:
        for item in decided:
            for delivery in item.work.deliveries:
                await delivery.ack()
        await commit(self, decided)

    return [(ShardPlanner, "_commit_decisions", broken)]


def _projector_acks_first() -> list[Patch]:
    project = Projector._project_batch

    async def broken(self: Projector, arrived: FetchedBatch) -> None:
        for delivery in arrived.open:
            await delivery.ack()
        await project(self, arrived)

    return [(Projector, "_project_batch", broken)]


def _no_fence() -> list[Patch]:
    return [(MemoryLedger, "_check_fence", lambda _self, _batch: None)]


def _no_version() -> list[Patch]:
    return [
        (MemoryLedger, "_check_version", lambda _self, _stream: None),
        (MemoryLedger, "_collect_new_keys", lambda _self, _streams: set()),
    ]


def _watermark() -> list[Patch]:
    async def broken(self: Any, *, owner: str, lease_s: float, rows_max: int) -> list[Any]:
        store = self._store
        seen = getattr(store, "watermark", 0)
        fresh = [key for key in sorted(store.message_by_id) if key > seen][:rows_max]
        now = store.now()
        free = [key for key in fresh if (store.message_by_id[key].leased_until or now) <= now]
        store.watermark = max([seen, *free])
        return [store.message_by_id[key].row for key in free]

    return [(MemoryOutbox, "claim_rows", broken)]


def _settles_unconfirmed() -> list[Patch]:
    def broken(rows: Sequence[Any], stored: Sequence[bool], *, rows_max: int) -> BatchVerdict:
        return BatchVerdict(settled=[row.outbox_id for row in rows], released=[], postponed=[])

    return [(outbox_domain, "decide_settlement", broken)]


def _loop_done_twice() -> list[Patch]:
    """Gathered twice, remembered by nobody, and without a key in the ledger."""
    ask, collect, key_of = (
        LoopQueue.enqueue_loop,
        command_facts.accept_collected_items,
        draft.build_event_key,
    )

    def asks_twice(self: LoopQueue, state: Any, run_id: str, inbox: Any) -> None:
        ask(self, state, run_id, inbox)
        inbox._requested_keys.clear()
        ask(self, state, run_id, inbox)

    def ends_again(decision: Any, fact: Any) -> None:
        before = len(decision.envelopes)
        if any(run.run_id == fact.run_id for run in decision.state.runs.values()):
            collect(decision, fact)
            ended = [item.event for item in decision.envelopes[before:]]
            _ENDED.update(
                {item.run_id: item for item in ended if isinstance(item, LoopDone | LoopFailed)}
            )
        elif fact.run_id in _ENDED:
            decision.emit(_ENDED[fact.run_id])

    def without_key(event: Any) -> str | None:
        return None if isinstance(event, LoopDone | LoopFailed) else key_of(event)

    return [
        (LoopQueue, "enqueue_loop", asks_twice),
        (command_facts, "accept_collected_items", ends_again),
        (draft, "build_event_key", without_key),
    ]


_ENDED: dict[str, Any] = {}


def _skips_gaps() -> list[Patch]:
    arrange = version_order.arrange_batches

    def broken(version: int, batches: Any) -> Any:
        order = arrange(version, batches)
        return structs.replace(
            order, steps=[step for step in order.steps if not isinstance(step, VersionGap)]
        )

    return [(version_order, "arrange_batches", broken)]


def _positions_unchecked() -> list[Patch]:
    apply = MemoryProjections.apply_rows

    async def broken(self: Any, *, positions: Any, **written: Any) -> list[str]:
        position_by_execution = self._store.position_by_execution
        believed = {
            item: (position_by_execution.get(item, 0), new) for item, (_, new) in positions.items()
        }
        return await apply(self, positions=believed, **written)

    return [(MemoryProjections, "apply_rows", broken)]


def _attempt_unchecked() -> list[Patch]:
    live_command = commands.find_live_command

    def broken(decision: Any, command_id: Any, attempt: int, **about: Any) -> Any:
        command = decision.state.commands.get(command_id)
        return command or live_command(decision, command_id, attempt, **about)

    return [(commands, "find_live_command", broken)]


def _runs_redeliveries() -> list[Patch]:
    attend = CommandHost.handle_delivery

    class First:
        def __init__(self, delivery: Any) -> None:
            self._delivery = delivery
            self.delivery_count = 1

        def __getattr__(self, name: str) -> Any:
            return getattr(self._delivery, name)

    async def broken(self: CommandHost, delivery: Any) -> None:
        await attend(self, First(delivery))  # type: ignore[arg-type]  # the same delivery, renamed

    return [(CommandHost, "handle_delivery", broken)]


def _no_lease_end() -> list[Patch]:
    return [(lease_terms, "compute_remaining_s", lambda *_args, **_kwargs: 1e6)]


def _no_redrive() -> list[Patch]:
    async def broken(_self: Any, *, older_than_s: float, requests_max: int) -> int:
        return 0

    return [(MemoryRequests, "redrive_requests", broken)]


def _begins_again() -> list[Patch]:
    def broken(self: MemoryStore, request: Request, *, latest: object) -> None:
        now = self.now()
        self.request_by_id[request.request_id] = StoredRequest(
            request=request, sent_at=now, settled_at=now
        )

    return [(MemoryStore, "keep_settled_request", broken)]


def _stores_later() -> list[Patch]:
    """Report a payload while its write is still on the way; it goes down with the process."""
    put = MemoryPayloads.put_payload

    async def broken(self: MemoryPayloads, data: Any, **about: Any) -> Any:
        before = set(self.bytes_by_key)
        ref = await put(self, data, **about)
        for key in self.bytes_by_key.keys() - before:
            byte = self.bytes_by_key.pop(key)
            loop = asyncio.get_running_loop()
            loop.call_later(1.5, self.bytes_by_key.__setitem__, key, byte)
        return ref

    return [(MemoryPayloads, "put_payload", broken)]


def _keeps_states() -> list[Patch]:
    give_back = ShardPlanner._return_deliveries

    async def broken(self: ShardPlanner, decided: Any) -> None:
        gone = list(decided)
        await give_back(self, gone)
        for item in gone:
            self._states.put_state_back(item.state)

    return [(ShardPlanner, "_return_deliveries", broken)]


def _never_catches_up() -> list[Patch]:
    async def broken(_self: Projector) -> int:
        return 0

    return [(Projector, "catch_up", broken)]


def _unmasked_rows() -> list[Patch]:
    keep_list = ResultStore.store_row_results

    async def broken(self: ResultStore, results: list[Any]) -> Any:
        nothing = mock.Mock(data=lambda data: data)
        with mock.patch.object(self, "_mask", nothing):
            return await keep_list(self, results)

    return [(ResultStore, "store_row_results", broken)]


def _no_loss_reports() -> list[Patch]:
    async def broken(_self: Reaper) -> None:
        return None

    return [(Reaper, "report_lost_commands", broken)]


def _no_nudges() -> list[Patch]:
    async def broken(_self: Reaper) -> None:
        return None

    return [(Reaper, "wake_stalled", broken)]


def _one_name() -> list[Patch]:
    def broken(stream_sequence: int, *, token: str) -> str:
        return str(stream_sequence)

    return [(lease_terms, "build_holder_name", broken)]


def _says_chunks_once() -> list[Patch]:
    async def broken(self: ChunkEmitter) -> None:
        await self._progress.wait_for_change(1.0)

    return [(ChunkEmitter, "_wait_for_progress", broken)]


BUGS = tuple(
    Bug(name=name, breaks=breaks, make=make, needs=tuple(needs))
    for name, breaks, make, *needs in (
        ("the planner acknowledges before it commits", "6", _planner_acks_first),
        ("the projector acknowledges before it writes", "6", _projector_acks_first),
        ("an append does not check its fence", "5", _no_fence),
        (
            "an append checks neither version nor keys",
            "3, 4, I6",
            _no_version,
            "duplicate",
            "crash",
        ),
        ("the outbox goes by a watermark", "2, I8", _watermark),
        ("the outbox removes what was not confirmed", "2, I8", _settles_unconfirmed),
        ("nothing makes `loop.done` unique", "4, I2", _loop_done_twice),
        ("the projector skips gaps", "11, I3", _skips_gaps),
        ("a projection's position is not compared", "11, I3", _positions_unchecked),
        ("the fence of an attempt is not checked", "7, I1", _attempt_unchecked, "cut", "stranded"),
        ("a worker runs what was delivered before", "7", _runs_redeliveries),
        ("a worker goes on after its lease", "7", _no_lease_end, "long", "cut_at_work"),
        ("requests are not sent again", "15", _no_redrive, "lost_message", "wipe"),
        ("a known key begins another execution", "4", _begins_again, "lost_reply"),
        ("a result is reported before it is stored", "9, I4", _stores_later),
        ("a state is kept whose events were refused", "3, I6", _keeps_states),
        (
            "the projector never asks the ledger",
            "15, I3",
            _never_catches_up,
            "lost_message",
            "wipe",
        ),
        ("the results of rows are not masked", "I7", _unmasked_rows),
        ("lost commands are not reported", "15", _no_loss_reports, "lost_message", "wipe"),
        ("silent executions are not nudged", "15", _no_nudges),
        ("two runs of one message have one name", "8a", _one_name, "restart"),
        ("chunks are not sent again", "15", _says_chunks_once, "lost_message"),
    )
)
