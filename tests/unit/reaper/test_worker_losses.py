"""What a killed worker held is reported as lost: neither more, nor while anybody is silent."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial

import pytest
from tests.support.manual_clock import ManualClock
from tests.support.polling import eventually

from noetl_contracts import codec, subjects
from noetl_contracts.commands.command_work import Command, StepWork
from noetl_contracts.commands.held_commands import HeldCommands
from noetl_contracts.commands.worker_pools import WorkerHeartbeat
from noetl_contracts.ids import (
    CommandId,
    ExecutionId,
    OrganizationId,
    RunId,
    TenantId,
    WorkerId,
)
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests.facts import CommandLost, decode_fact_batch
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import ConnectionReport, OpenConnection, UnsettledMessage
from noetl_reaper.domain import WORKER_LOST, ReaperPolicy, build_worker_lost_request
from noetl_reaper.sweeps import worker_losses
from noetl_reaper.sweeps.worker_losses import HEARD_ALL_S, WorkerLossPolicy, WorkerLossWatch
from noetl_storage.memory.outbox import MemoryRequests
from noetl_storage.memory.store import MemoryStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
GRACE_S, LEASE_S = 2.0, 30.0
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
POLICY = WorkerLossPolicy(
    grace_s=GRACE_S,
    lease_s=LEASE_S,
    build_request=partial(
        build_worker_lost_request,
        policy=ReaperPolicy(
            lease_s=LEASE_S, grace_s=2, stalled_age_s=60, routes=IngestRoutes(shard_count=1)
        ),
    ),
)


class KnownConnections:
    """A broker whose clients are as the test says; without any it is away."""

    def __init__(self) -> None:
        self.names: dict[int, str] | None = {}

    async def list_connections(self) -> ConnectionReport:
        if self.names is None:
            raise MessagingUnavailable("away")
        return ConnectionReport(
            servers=frozenset({"a"}),
            connections=frozenset(
                OpenConnection(server="a", number=number, name=name)
                for number, name in self.names.items()
            ),
        )


class KnownMessages:
    """Messages that are handed over and not settled, as the test says."""

    def __init__(self) -> None:
        self.data_by_sequence: dict[int, bytes] = {}

    async def iterate_unsettled(self) -> AsyncIterator[UnsettledMessage]:
        for sequence, data in self.data_by_sequence.items():
            yield UnsettledMessage(sequence=sequence, data=data)


class World:
    """A reaper that leads, two workers, and who of them holds what."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOON)
        self.broker = MemoryBroker(topology.declare_topology(shard_count=1), self.clock)
        self.store = MemoryStore(clock=self.clock)
        self.connections, self.messages = KnownConnections(), KnownMessages()
        self.is_leading = True
        self.held: dict[str, list[int]] = {"worker-1": [], "worker-2": []}
        self.connections.names = {1: "worker-1", 2: "worker-2"}
        self.watch = WorkerLossWatch(
            connections=self.connections,
            messages=self.messages,
            requests=MemoryRequests(self.store),
            hints=self.broker,
            clock=self.clock,
            policy=POLICY,
            is_leading=lambda: self.is_leading,
        )
        self.asked = 0

    async def look(self, *, after_s: float = 0.0) -> None:
        self.clock.advance_by(after_s)
        await self.watch.look_for_losses()

    def kill(self, number: int) -> None:
        assert self.connections.names is not None
        name = self.connections.names.pop(number)
        del self.held[name]

    async def answer_calls(self) -> None:
        async for call in self.broker.subscribe(subjects.ROLL_CALL):
            self.asked += 1
            for name, sequences in self.held.items():
                answer = HeldCommands(
                    call=call.decode(),
                    worker_id=WorkerId(name),
                    pool="default",
                    lanes=("io",),
                    sequences=tuple(sequences),
                )
                subject = subjects.build_held_subject("default", name)
                await self.broker.broadcast(subject, codec.encode_json(answer))

    async def say_present(self, names: Iterable[str]) -> None:
        for name in names:
            beat = WorkerHeartbeat(
                worker_id=WorkerId(name), pool="default", lanes=("io",), running=0, capacity=4
            )
            subject = subjects.build_presence_subject("default", name)
            await self.broker.broadcast(subject, codec.encode_json(beat))

    def lost(self) -> list[tuple[str, int, str]]:
        found = []
        for stored in self.store.request_by_id.values():
            (fact,) = decode_fact_batch(stored.request.data).facts
            assert isinstance(fact, CommandLost)
            found.append((fact.command_id, fact.attempt, fact.reason))
        return sorted(found)


def encode_command(name: str, attempt: int = 1, *, traceparent: str | None = None) -> bytes:
    return codec.encode_json(
        Command(
            command_id=CommandId(name),
            execution_id=ExecutionId("264905529753600000"),
            tenant_id=TenantId("acme"),
            organization_id=OrganizationId("ops"),
            run_id=RunId("r"),
            activation=1,
            step="s",
            attempt=attempt,
            pool="default",
            lane="io",
            lease_s=LEASE_S,
            heartbeat_s=5,
            definition={},
            work=StepWork(),
            traceparent=traceparent,
        )
    )


async def until_all_listen(broker: MemoryBroker) -> None:
    async def is_heard() -> bool:
        return {subjects.ROLL_CALL, subjects.WORKERS, subjects.HELD} <= broker.watched_subjects

    await eventually(is_heard)


@asynccontextmanager
async def running_world() -> AsyncIterator[World]:
    world, stop = World(), asyncio.Event()
    world.is_leading = False  # the watch's own looks find nothing to do: the test takes them
    async with asyncio.TaskGroup() as group:
        watching = group.create_task(world.watch.watch_workers(stop))
        answering = group.create_task(world.answer_calls())
        await until_all_listen(world.broker)
        await world.say_present(["worker-1", "worker-2"])
        await asyncio.sleep(0.05)
        world.is_leading = True
        world.clock.advance_by(HEARD_ALL_S)
        await world.look()
        try:
            yield world
        finally:
            stop.set()
            watching.cancel()
            answering.cancel()


@pytest.fixture(autouse=True)
def only_the_tests_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_losses, "LOOK_S", 3600.0)
    monkeypatch.setattr(worker_losses, "ANSWERED_WITHIN_S", 0.2)


async def test_what_nobody_holds_in_two_looks_is_lost() -> None:
    async with running_world() as world:
        world.messages.data_by_sequence = {
            5: encode_command("c5", attempt=2),
            6: encode_command("c6"),
        }
        world.held["worker-2"] = [6]
        world.kill(1)
        await world.look(after_s=0.5)
        await world.look(after_s=GRACE_S)
        assert world.lost() == []
        await world.look(after_s=0.5)
        assert world.lost() == [("c5", 2, WORKER_LOST)]


async def test_a_report_is_a_part_of_the_commands_trace() -> None:
    async with running_world() as world:
        world.messages.data_by_sequence = {5: encode_command("c5", traceparent=TRACEPARENT)}
        world.kill(1)
        await world.look(after_s=0.5)
        await world.look(after_s=GRACE_S)
        await world.look(after_s=0.5)
        (stored,) = world.store.request_by_id.values()
        reported = decode_fact_batch(stored.request.data).traceparent
        assert reported is not None
        assert reported.split("-")[1] == TRACEPARENT.split("-")[1]


async def test_what_was_only_on_its_way_to_a_worker_is_not_lost() -> None:
    async with running_world() as world:
        world.messages.data_by_sequence = {7: encode_command("c7")}
        world.kill(1)
        await world.look(after_s=0.5)
        await world.look(after_s=GRACE_S)
        world.held["worker-2"] = [7]
        world.messages.data_by_sequence[8] = encode_command("c8")
        await world.look(after_s=0.5)
        assert world.lost() == []


async def test_nothing_is_concluded_while_a_connected_worker_is_silent() -> None:
    async with running_world() as world:
        world.messages.data_by_sequence = {5: encode_command("c5")}
        world.kill(1)
        held = world.held.pop("worker-2")
        for _ in range(4):
            await world.look(after_s=GRACE_S)
        assert world.lost() == []
        world.held["worker-2"] = held
        await world.look(after_s=0.5)
        await world.look(after_s=0.5)
        assert world.lost() == [("c5", 1, WORKER_LOST)]


async def test_after_a_lease_the_leases_have_decided() -> None:
    async with running_world() as world:
        world.messages.data_by_sequence = {5: encode_command("c5")}
        world.kill(1)
        held = world.held.pop("worker-2")
        await world.look(after_s=0.5)
        await world.look(after_s=GRACE_S + LEASE_S)
        world.held["worker-2"] = held
        await world.look(after_s=0.5)
        await world.look(after_s=0.5)
        assert world.lost() == []


async def test_a_worker_that_connects_again_keeps_what_it_says_it_holds() -> None:
    async with running_world() as world:
        world.messages.data_by_sequence = {5: encode_command("c5"), 6: encode_command("c6")}
        world.held["worker-1"] = [5]
        world.connections.names = {9: "worker-1", 2: "worker-2"}
        await world.look(after_s=0.5)
        await world.look(after_s=GRACE_S)
        await world.look(after_s=0.5)
        # The process behind the new connection does not know of 6: its former one had it.
        assert world.lost() == [("c6", 1, WORKER_LOST)]


async def test_nobody_is_asked_while_nobody_has_left() -> None:
    async with running_world() as world:
        for _ in range(3):
            await world.look(after_s=10)
        assert world.asked == 0


async def test_after_a_broker_that_was_away_nobody_counts_as_gone() -> None:
    async with running_world() as world:
        world.messages.data_by_sequence = {5: encode_command("c5")}
        world.connections.names = None
        with pytest.raises(MessagingUnavailable):
            await world.look(after_s=0.5)
        world.connections.names = {2: "worker-2"}
        for _ in range(4):
            await world.look(after_s=GRACE_S)
        assert world.asked == 0
        assert world.lost() == []


async def test_a_reaper_that_does_not_lead_looks_at_nothing() -> None:
    async with running_world() as world:
        world.messages.data_by_sequence = {5: encode_command("c5")}
        world.is_leading = False
        world.kill(1)
        for _ in range(4):
            await world.look(after_s=GRACE_S)
        assert world.asked == 0
        assert world.lost() == []


async def test_what_cannot_be_read_is_left_to_the_workers() -> None:
    async with running_world() as world:
        world.messages.data_by_sequence = {4: b"{", 5: encode_command("c5")}
        world.kill(1)
        await world.look(after_s=0.5)
        await world.look(after_s=GRACE_S)
        await world.look(after_s=0.5)
        assert world.lost() == [("c5", 1, WORKER_LOST)]


async def test_an_answer_in_another_workers_name_is_not_heard() -> None:
    async with running_world() as world:
        world.messages.data_by_sequence = {5: encode_command("c5")}
        del world.held["worker-2"]
        world.kill(1)

        async def lie() -> None:
            async for call in world.broker.subscribe(subjects.ROLL_CALL):
                answer = HeldCommands(
                    call=call.decode(),
                    worker_id=WorkerId("worker-2"),
                    pool="default",
                    lanes=("io",),
                    sequences=(),
                )
                subject = subjects.build_held_subject("default", "worker-3")
                await world.broker.broadcast(subject, codec.encode_json(answer))

        lying = asyncio.create_task(lie())
        await asyncio.sleep(0)
        await world.look(after_s=0.5)
        for _ in range(3):
            await world.look(after_s=GRACE_S)
        lying.cancel()
        assert world.lost() == []
