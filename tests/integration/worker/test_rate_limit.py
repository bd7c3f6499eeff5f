"""`spec.rate_limit` over two workers that share a NATS server, and what is refused."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from aiohttp import web
from msgspec import structs
from tests.support.scripted import Script, says, script
from tests.support.servers import NatsServer, nats_server
from tests.support.working import Bench, bench, command_of

from noetl_chassis.clock import SystemClock
from noetl_contracts.commands.command_work import Command
from noetl_contracts.commands.waits import ELAPSED, Resume, TimeWait
from noetl_contracts.requests.facts import CommandCompleted, CommandFailed, CommandParked
from noetl_messaging.jetstream.connection import open_connection
from noetl_messaging.jetstream.registers import JetStreamRegisters
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.memory.registers import MemoryRegisters
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable

RATE, BURST, CALLS = 20, 4, 40
# The clock of the limit may run a little ahead of the one of the test.
CLOCKS_S = 0.05


class Flaky(MemoryRegisters):
    """Registers that cannot be reached for the first times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    async def swap_value(self, name: str, data: bytes, *, revision: int) -> int | None:
        if self.failures:
            self.failures -= 1
            raise MessagingUnavailable("away")
        return await super().swap_value(name, data, revision=revision)


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script() as found:
        found.answers(says({}))
        yield found


def limited(server: Script, limit: str, **fields: Any) -> Command:
    step = f"""
  - step: call
    tool: {{kind: http, url: "{server.url}", spec: {{rate_limit: {limit}}}}}
"""
    return command_of(step, **fields)


async def calls(worker: Bench, commands: list[Command]) -> None:
    for command in commands:
        await worker.send(command)
    found = await worker.commands.fetch_batch(messages_max=len(commands), wait_s=5)
    assert len(found) == len(commands)
    await asyncio.gather(*[worker.lane.handle_delivery(delivery) for delivery in found])


async def test_two_workers_together_keep_to_the_rate(nats: NatsServer, server: Script) -> None:
    arrived: list[float] = []

    async def count(_request: web.Request) -> web.StreamResponse:
        arrived.append(time.monotonic())
        return web.json_response({})

    server.answers(count)
    limit = f"{{key: shop, rate: {RATE}, per: 1s, burst: {BURST}}}"
    async with (
        open_connection(nats.url, name="admin") as admin,
        open_connection(nats.url_for("worker"), name="one") as connection,
        open_connection(nats.url_for("worker"), name="two") as two,
    ):
        await JetStreamStreams(
            admin, topology.declare_topology(shard_count=1), now=SystemClock().now
        ).ensure_streams()
        async with (
            bench(JetStreamRegisters(connection)) as first,
            bench(JetStreamRegisters(two)) as second,
        ):
            began_at = time.monotonic()
            await asyncio.gather(
                *[
                    calls(worker, [limited(server, limit) for _ in range(CALLS // 2)])
                    for worker in (first, second)
                ]
            )
            facts = await first.facts() + await second.facts()
    assert len([fact for fact in facts if isinstance(fact, CommandCompleted)]) == CALLS
    assert len(arrived) == CALLS
    # From the beginning on: a call that arrives late is closer to its successors.
    for count, arrived_at in enumerate(arrived, start=1):
        assert count <= (arrived_at - began_at + CLOCKS_S) * RATE + BURST


async def test_waiting_is_not_part_of_the_timeout(server: Script) -> None:
    limit = "{key: slow, rate: 1, per: 4s}"
    step = f"""
  - step: call
    tool: {{kind: http, url: "{server.url}", timeout: 3.5, spec: {{rate_limit: {limit}}}}}
"""
    async with bench() as worker:
        await calls(worker, [command_of(step), command_of(step)])
        facts = await worker.facts()
    assert len([fact for fact in facts if isinstance(fact, CommandCompleted)]) == 2


async def test_keys_are_rendered_and_do_not_wait_for_each_other(server: Script) -> None:
    limit = '{key: "{{ workload.shop }}", rate: 1, per: 1h}'
    async with bench() as worker:
        for shop in ("a", "b", "c"):
            facts = await worker.run(limited(server, limit, workload={"shop": shop}))
            assert any(isinstance(fact, CommandCompleted) for fact in facts)
    assert len(server.seen) == 3


async def test_a_call_that_waits_can_be_stopped(server: Script) -> None:
    limit = "{key: k, rate: 1, per: 50s}"
    async with bench() as worker:
        await worker.run(limited(server, limit))
        waiting = limited(server, limit)
        await worker.send(waiting)
        (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=5)
        attending = asyncio.create_task(worker.lane.handle_delivery(delivery))
        await asyncio.sleep(0)
        pacer = worker.lane._lane.pacer
        while not any(queue.tickets for queue in pacer._queues.values()):  # noqa: ASYNC110 - the queue sets no event
            await asyncio.sleep(0.01)
        worker.lane.release_commands()
        await asyncio.wait_for(attending, 60)
        assert not any(queue.tickets for queue in pacer._queues.values())
    assert len(server.seen) == 1


async def test_a_call_whose_turn_is_far_away_lets_its_worker_go_and_keeps_its_attempt(
    server: Script,
) -> None:
    limit = "{key: k, rate: 1, per: 1h}"
    async with bench() as worker:
        await worker.run(limited(server, limit))
        waiting = limited(server, limit)
        fact = (await worker.run(waiting))[-1]
        assert isinstance(fact, CommandParked)
        wait = fact.wait
        assert isinstance(wait, TimeWait)
        assert wait.reason == "rate_limit"
        assert 3500 < wait.timeout_s <= 3600
        resume = Resume(key=wait.key, ref=fact.resume_ref, status=ELAPSED)
        again = structs.replace(waiting, attempt=2, resume=resume)
        # The clock has not moved: it waits on, and no attempt of the task was used.
        later = (await worker.run(again))[-1]
        assert isinstance(later, CommandParked)
        assert isinstance(later.wait, TimeWait)
        assert later.wait.key == wait.key
    assert len(server.seen) == 1


async def test_while_nothing_can_be_shared_calls_wait(server: Script) -> None:
    flaky = Flaky(2)
    async with bench(flaky) as worker:
        facts = await worker.run(limited(server, "{key: k, rate: 1000}"))
        assert any(isinstance(fact, CommandCompleted) for fact in facts)
    assert flaky.failures == 0


@pytest.mark.parametrize(
    ("limit", "kind", "says_"),
    [
        ('{key: "{{ workload.no }}", rate: 1}', "template", "spec.rate_limit"),
        ('{key: k, rate: "{{ workload.text }}"}', "validation", "'rate' is a number"),
        ('{key: k, rate: "{{ 0 - 1 }}"}', "validation", "above 0"),
        ('{key: "{{ workload.long }}", rate: 1}', "validation", "characters"),
        ('{key: k, rate: 1, per: "{{ 90000 }}"}', "validation", "'per'"),
    ],
)
async def test_what_is_no_limit_fails_the_task(
    server: Script, limit: str, kind: str, says_: str
) -> None:
    workload = {"text": "fast", "long": "x" * 300}
    async with bench() as worker:
        facts = await worker.run(limited(server, limit, workload=workload))
    (failed,) = [fact for fact in facts if isinstance(fact, CommandFailed)]
    assert (failed.error.kind, says_ in failed.error.message) == (kind, True), failed.error
    assert server.seen == []
