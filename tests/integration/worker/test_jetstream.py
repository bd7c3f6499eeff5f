"""A worker on a real NATS, under the worker's own user and its permissions."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from msgspec import Struct
from tests.support.polling import eventually
from tests.support.scripted import Script, hangs, says, script
from tests.support.servers import NatsServer, nats_server
from tests.support.working import ORGANIZATION, TENANT, WORKER, command_of, settings_of

from noetl_chassis.clock import SystemClock
from noetl_chassis.loop import LoopHealth
from noetl_contracts import codec, subjects
from noetl_contracts.commands.command_work import Command
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import CommandCompleted, CommandLost, CommandStopped, Fact
from noetl_messaging.jetstream.connection import Connection, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.jetstream.hints import NatsHints
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.jetstream.registers import JetStreamRegisters
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Message
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_worker import wiring
from noetl_worker.tool_factory import open_tools
from noetl_worker.wiring import Adapters

LEASE_S = 3.0


class Office(Struct, frozen=True, kw_only=True):
    """The planner's side: sends commands, takes facts, stops work."""

    admin: Connection
    ingest: JetStreamConsumer
    taken: list[Fact]

    async def send(self, command: Command, *, data: bytes | None = None) -> None:
        await JetStreamPublisher(self.admin).publish_message(
            Message(
                subject=subjects.build_command_subject("default", "io", TENANT, ORGANIZATION),
                message_id=f"{command.command_id}/{command.attempt}",
                data=codec.encode_json(command) if data is None else data,
            )
        )

    async def facts(self, kind: type[Fact], command: Command) -> list[Fact]:
        for delivery in await self.ingest.fetch_batch(messages_max=100, wait_s=0.05):
            self.taken.extend(facts.decode_fact_batch(delivery.data).facts)
            await delivery.ack()
        return [
            item
            for item in self.taken
            if isinstance(item, kind) and getattr(item, "command_id", "") == command.command_id
        ]


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server of its own: another lease than the session's."""
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
async def office(nats: NatsServer) -> AsyncIterator[Office]:
    async with open_connection(nats.url, name="test") as admin:
        declared = topology.declare_topology(shard_count=1, lease_s=LEASE_S)
        await JetStreamStreams(admin, declared, now=SystemClock().now).ensure_streams()
        ingest = JetStreamConsumer(admin, stream=topology.INGEST, name="planner-0")
        yield Office(admin=admin, ingest=ingest, taken=[])
        await ingest.close()


@pytest.fixture
async def stop(nats: NatsServer, office: Office) -> AsyncIterator[asyncio.Event]:
    config = settings_of(lease_s=LEASE_S, nats_url=nats.url_for("worker"))
    clock, payloads = SystemClock(), MemoryPayloads()
    event = asyncio.Event()
    async with (
        open_connection(nats.url_for("worker"), name="worker") as bus,
        open_tools(config, payloads, clock) as (tools, mask),
        asyncio.TaskGroup() as group,
    ):
        adapters = Adapters(
            consumers=tuple(
                JetStreamConsumer(bus, stream=topology.COMMANDS, name=name)
                for name in topology.list_worker_consumers("default")
            ),
            publisher=JetStreamPublisher(bus),
            hints=NatsHints(bus),
            registers=JetStreamRegisters(bus),
            dead_letters=JetStreamDeadLetters(bus),
            payloads=payloads,
            tools=tools,
            mask=mask,
            clock=clock,
        )
        worker = wiring.build_worker(adapters, config, instance=WORKER)
        pulse = LoopHealth("commands", stale_s=30)
        group.create_task(worker.run(stop=event, loop_health=pulse, drain_s=0.1))
        yield event
        event.set()


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script() as found:
        found.answers(hangs())
        yield found


def waiting(server: Script) -> Command:
    step = f"""
  - step: wait
    tool: {{kind: http, url: "{server.url}", timeout: 60}}
"""
    return command_of(step, heartbeat_s=0.4)


@pytest.mark.usefixtures("stop")
async def test_a_command_is_run_and_reported(office: Office) -> None:
    command = command_of("\n  - {step: s, tool: {kind: noop, result: {n: 1}}}\n")
    await office.send(command)
    (done,) = await eventually(lambda: office.facts(CommandCompleted, command))
    assert isinstance(done, CommandCompleted)
    assert done.worker_id == f"worker.{WORKER}"


@pytest.mark.usefixtures("stop")
async def test_work_beyond_the_ack_wait_is_not_delivered_again(
    office: Office, server: Script
) -> None:
    command = waiting(server)
    await office.send(command)
    await server.arrived.wait()
    until = asyncio.get_running_loop().time() + 1.4 * LEASE_S

    async def is_later() -> bool:
        return asyncio.get_running_loop().time() > until

    await eventually(is_later)
    assert await office.facts(CommandLost, command) == []
    assert len(server.seen) == 1


@pytest.mark.usefixtures("stop")
async def test_a_stop_reaches_the_worker(office: Office, server: Script) -> None:
    command = waiting(server)
    await office.send(command)
    await server.arrived.wait()

    async def is_stopped() -> bool:
        await NatsHints(office.admin).notify(subjects.build_stop_hint(command.command_id))
        return bool(await office.facts(CommandStopped, command))

    await eventually(is_stopped)


async def test_leaving_gives_the_command_back(
    office: Office, server: Script, stop: asyncio.Event
) -> None:
    command = waiting(server)
    await office.send(command)
    await server.arrived.wait()
    stop.set()
    (lost,) = await eventually(lambda: office.facts(CommandLost, command))
    assert isinstance(lost, CommandLost)
    assert lost.is_release


@pytest.mark.usefixtures("stop")
async def test_what_does_not_decode_becomes_a_dead_letter(office: Office) -> None:
    command = command_of("\n  - {step: s, tool: {kind: noop}}\n")
    marker = command.command_id.encode()
    await office.send(command, data=b'{"bad": "' + marker + b'"}')
    dead_letters = JetStreamDeadLetters(office.admin)

    async def is_buried() -> bool:
        found = await dead_letters.list_letters(letters_max=100)
        return any(marker in dead_letter.data for dead_letter in found)

    await eventually(is_buried)


@pytest.mark.usefixtures("stop")
async def test_many_small_commands_run_at_once(office: Office, server: Script) -> None:
    server.answers(says({}))
    step = f"""
  - step: s
    tool: {{kind: http, url: "{server.url}"}}
"""
    commands = [command_of(step) for _ in range(40)]
    for command in commands:
        await office.send(command)

    async def all_done() -> bool:
        found = [await office.facts(CommandCompleted, command) for command in commands[-1:]]
        done = [item for item in office.taken if isinstance(item, CommandCompleted)]
        return bool(found) and {item.command_id for item in done} >= {
            command.command_id for command in commands
        }

    await eventually(all_done)
