"""Offers between all services: taken where the inputs are, and lost by nobody who dies."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.inprocess import ExecutionRecord, a_system, begin, ended, history
from tests.support.polling import eventually

from noetl_chassis.loop import LoopHealth
from noetl_cli.local.system import LocalSystem
from noetl_contracts.commands import command_work
from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.worker_pools import WorkerHeartbeat
from noetl_contracts.events import get_event_type
from noetl_contracts.ids import CommandId, ExecutionId, WorkerId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests.facts import CommandCompleted, CommandLost, Fact
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.consumer import MemoryConsumer
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.memory.registers import MemoryRegisters
from noetl_messaging.streams import topology
from noetl_worker import wiring
from noetl_worker.commands import offers
from noetl_worker.commands.fact_publisher import FactPublisher, ReportRoute
from noetl_worker.commands.offers import OfferHost, OfferIntake
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.tool_factory import open_tools

PLAYBOOK = """
workflow:
  - step: make
    tool: {kind: python, code: "result = {'rows': ['x' * 3000]}"}
    next: {arcs: [{step: use}]}
  - step: use
    tool: {kind: python, input: {rows: "{{ make.rows }}"}, code: "result = len(rows)"}
"""
GHOST = WorkerId("ghost")


def beat(name: str, node: str, free: int) -> WorkerHeartbeat:
    return WorkerHeartbeat(
        worker_id=WorkerId(name),
        pool="default",
        lanes=("io",),
        running=0,
        capacity=free,
        locality={"node": node},
    )


def haunt(opened: LocalSystem) -> None:
    """Let the planner think that a worker is where the inputs are, and another one far away."""
    for item in (beat(GHOST, "n1", 9), beat("far", "n9", 9)):
        opened.adapters.worker_presence.note_beat(item)


def broker_of(opened: LocalSystem) -> MemoryBroker:
    hints = opened.adapters.hints
    assert isinstance(hints, MemoryBroker)
    return hints


@asynccontextmanager
async def two_workers(folder: Path) -> AsyncIterator[LocalSystem]:
    """All services, and a second worker on another node."""
    settings = {"NOETL_PLANNER_OFFER_S": "60", "NOETL_WORKER_NODE": "n1"}
    async with a_system(folder, **settings) as opened, asyncio.TaskGroup() as tasks:
        broker, clock = broker_of(opened), opened.adapters.clock
        hearing = tasks.create_task(opened.adapters.worker_presence.listen_to_workers(broker))
        config = structs.replace(opened.configs.worker, node="n2")
        async with open_tools(config, opened.adapters.payloads, clock) as (tools, mask):
            second = wiring.build_worker(
                wiring.Adapters(
                    consumers=tuple(
                        MemoryConsumer(broker, stream=topology.COMMANDS, name=name)
                        for name in topology.list_worker_consumers("default")
                    ),
                    publisher=broker,
                    hints=broker,
                    registers=MemoryRegisters(),
                    dead_letters=MemoryDeadLetters(broker),
                    payloads=opened.adapters.payloads,
                    tools=tools,
                    mask=mask,
                    clock=clock,
                ),
                config,
                instance="second",
            )
            stop = asyncio.Event()
            pulse = LoopHealth("second", stale_s=30)
            running = tasks.create_task(second.run(stop=stop, loop_health=pulse, drain_s=5))
            try:
                yield opened
            finally:
                stop.set()
                await running
                hearing.cancel()


async def test_what_was_made_large_is_used_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "BEAT_S", 0.05)
    async with two_workers(tmp_path) as opened:

        async def are_both_heard() -> bool:
            return (
                len({beat.worker_id for beat in opened.adapters.worker_presence.list_beats()}) == 2
            )

        await eventually(are_both_heard)
        asked = [await begin(opened, PLAYBOOK) for _ in range(4)]
        for execution_id in asked:
            outcome = await ended(opened, execution_id)
            assert outcome.types[-1] == "playbook.completed"
            made, used = outcome.of("command.started")
            assert (used.worker_id, used.attempt) == (made.worker_id, 1)
            assert used.placement.distance == "node"
            assert outcome.of("command.issued")[-1].target == made.worker_id


class Ghost:
    """A worker that hears its offers and does with them what a test wants."""

    def __init__(self, opened: LocalSystem) -> None:
        self.publisher = FactPublisher(
            publisher=opened.adapters.publisher,
            worker_id=GHOST,
            route=ReportRoute(routes=IngestRoutes(shard_count=1)),
            mask=SecretMask(),
            clock=opened.adapters.clock,
            locality={"node": "n1"},
        )
        self.offers = OfferIntake(fact_publisher=self.publisher, hints=opened.adapters.hints)
        self.heard: asyncio.Queue[tuple[Command, bytes]] = asyncio.Queue()

    async def listen(self) -> None:
        def begin_it(command: Command, data: bytes) -> None:
            self.heard.put_nowait((command, data))

        await self.offers.listen_for_offers(
            OfferHost(beat=lambda: beat(GHOST, "n1", 9), begin=begin_it)
        )

    async def say(self, command: Command, fact: Fact, key: str) -> None:
        await self.publisher.publish_facts(command, [fact], key=key)


async def until(opened: LocalSystem, execution_id: ExecutionId, kind: str) -> None:
    async def is_there() -> bool:
        return kind in [get_event_type(item.event) for item in await history(opened, execution_id)]

    await eventually(is_there, timeout_s=60)


async def test_an_offer_to_nobody_goes_to_the_pool_and_a_late_worker_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offers, "GRANTED_WITHIN_S", 0.05)
    settings = {"NOETL_PLANNER_OFFER_S": "0.2", "NOETL_WORKER_NODE": "n1"}
    async with a_system(tmp_path, **settings) as opened, asyncio.TaskGroup() as tasks:
        haunt(opened)
        ghost = Ghost(opened)
        listening = tasks.create_task(ghost.listen())
        execution_id = await begin(opened, PLAYBOOK)
        command, data = await ghost.heard.get()
        await until(opened, execution_id, "command.reissued")
        assert await ghost.offers.request_grant(command, data) is None
        outcome = await ended(opened, execution_id)
        listening.cancel()
    assert outcome.types[-1] == "playbook.completed"
    (again,) = outcome.of("command.reissued")
    assert (again.reason, again.attempt) == ("not_taken", 2)
    assert GHOST not in {item.worker_id for item in outcome.of("command.started")}
    assert outcome.types.count("call.done") == 2


async def test_a_worker_that_dies_with_what_it_was_granted_loses_it_to_another(
    tmp_path: Path,
) -> None:
    settings = {"NOETL_PLANNER_OFFER_S": "60", "NOETL_WORKER_NODE": "n1"}
    async with a_system(tmp_path, **settings) as opened, asyncio.TaskGroup() as tasks:
        haunt(opened)
        ghost = Ghost(opened)
        listening = tasks.create_task(ghost.listen())
        execution_id = await begin(opened, PLAYBOOK)
        command, data = await ghost.heard.get()
        delivery = await ghost.offers.request_grant(command, data)
        assert delivery is not None
        assert command_work.decode_command(delivery.data).attempt == 1
        assert await delivery.extend_ack_wait()
        # A repeated offer is granted to whom it was granted, so that it finds its own work.
        assert await ghost.offers.request_grant(command, data) is not None
        # It dies here; its lease passes.
        await ghost.say(command, lost(command), "lost/1")
        outcome = await ended(opened, execution_id)
        await ghost.say(command, done(command), "late/1")
        listening.cancel()
    assert_once(outcome, command.command_id)


def lost(command: Command) -> CommandLost:
    return CommandLost(
        command_id=command.command_id, attempt=command.attempt, reason="lease_expired"
    )


def done(command: Command) -> CommandCompleted:
    return CommandCompleted(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=GHOST,
        result=ResultEnvelope(status="ok"),
    )


def assert_once(execution_record: ExecutionRecord, command_id: CommandId) -> None:
    """The command was begun twice, and ended once, by the second who had it."""
    begun = [
        item for item in execution_record.of("command.started") if item.command_id == command_id
    ]
    assert [(item.attempt, item.worker_id == GHOST) for item in begun] == [(1, True), (2, False)]
    finished: list[Any] = [
        item for item in execution_record.of("command.completed") if item.command_id == command_id
    ]
    assert [(item.attempt, item.worker_id == GHOST) for item in finished] == [(2, False)]
    assert execution_record.types[-1] == "playbook.completed"
