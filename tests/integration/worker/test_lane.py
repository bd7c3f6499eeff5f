# ruff: noqa: E501 - a playbook reads best with one task to a line
"""How the lane holds commands: fences, leases, stops, releases, reports."""

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web
from tests.support.polling import eventually
from tests.support.scripted import Script, hangs, says, script
from tests.support.working import ORGANIZATION, TENANT, WORKER, Bench, bench, command_of

from noetl_chassis.clock import SystemClock
from noetl_chassis.loop import LoopHealth
from noetl_contracts import codec, subjects
from noetl_contracts.commands.command_work import Command, ItemWork
from noetl_contracts.requests.facts import (
    CommandCompleted,
    CommandFailed,
    CommandHeartbeat,
    CommandLost,
    CommandStarted,
    CommandStopped,
    Fact,
)
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.streams.ports import Delivery, Message
from noetl_worker.commands.intake import Intake
from noetl_worker.service import Worker


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench(lease_s=1.0) as found:
        yield found


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script() as found:
        found.answers(hangs())
        yield found


class DeafDelivery:
    """A delivery whose extensions nobody confirms."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery
        self.subject = delivery.subject
        self.data = delivery.data
        self.message_id = delivery.message_id
        self.traceparent = delivery.traceparent
        self.delivery_count = delivery.delivery_count
        self.stream_sequence = delivery.stream_sequence
        self.age_s = 0.0
        self.was_acked = False

    async def ack(self) -> None:
        self.was_acked = True

    async def nak(self, delay_s: float = 0.0) -> None:
        await self._delivery.nak(delay_s)

    async def term(self) -> None:
        await self._delivery.term()

    async def extend_ack_wait(self) -> bool:
        return False


class Redelivered(DeafDelivery):
    """A delivery that is not the first of its message."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery)
        self.delivery_count = 2


class LateDelivery(DeafDelivery):
    """A delivery that was on its way until its lease was over."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery)
        self.age_s = 0.9


def waiting(server: Script, *, lease_s: float = 1.0) -> Command:
    """A command that waits for a server that does not answer."""
    step = f"""
  - step: wait
    tool: {{kind: http, url: "{server.url}", timeout: 60}}
"""
    return command_of(step, lease_s=lease_s, heartbeat_s=0.1)


async def taken(worker: Bench, command: Command) -> Delivery:
    await worker.send(command)
    (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=1)
    return delivery


async def attended(
    worker: Bench, delivery: Delivery, until: asyncio.Event, then: Callable[[], object]
) -> list[Fact]:
    """Attend to a delivery; once `until` is set, do `then`; return the facts."""
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(worker.lane.handle_delivery(delivery))
        await until.wait()
        done = then()
        if asyncio.iscoroutine(done):
            await done
    return await worker.facts()


async def unsettled(worker: Bench) -> int:
    _, count = await worker.commands.count_pending()
    return count


async def test_short_work_is_reported_in_one_batch_and_acknowledged(worker: Bench) -> None:
    command = command_of("\n  - {step: s, tool: {kind: noop}}\n")
    delivery = await taken(worker, command)
    await worker.lane.handle_delivery(delivery)
    (batch,) = await worker.batches()
    assert [type(fact) for fact in batch.facts] == [CommandStarted, CommandCompleted]
    run = rf"{command.command_id}/1/{delivery.stream_sequence}\.[0-9a-f]{{8}}/0"
    assert re.fullmatch(run, batch.key)
    assert batch.producer == WORKER
    assert await unsettled(worker) == 0


async def test_lasting_work_is_announced_and_beats(worker: Bench, server: Script) -> None:
    facts: list[Fact] = []

    async def has_beaten() -> bool:
        facts.extend(await worker.facts())
        return any(isinstance(fact, CommandHeartbeat) for fact in facts)

    def stop() -> None:
        server.answers(says({}))

    delivery = await taken(worker, waiting(server))

    async def then() -> None:
        await eventually(has_beaten)
        worker.lane.release_commands()

    await attended(worker, delivery, server.arrived, then)
    assert isinstance(facts[0], CommandStarted)


async def test_a_redelivered_command_is_reported_lost_and_never_run(worker: Bench) -> None:
    command = command_of("\n  - {step: s, tool: {kind: noop}}\n")
    delivery = Redelivered(await taken(worker, command))
    await worker.lane.handle_delivery(delivery)
    (fact,) = await worker.facts()
    assert isinstance(fact, CommandLost)
    assert (fact.attempt, fact.reason, fact.is_release) == (1, "redelivered", False)
    assert delivery.was_acked


async def test_a_command_that_comes_after_its_lease_is_left_to_its_next_holder(
    worker: Bench,
) -> None:
    command = command_of("\n  - {step: s, tool: {kind: noop}}\n")
    delivery = LateDelivery(await taken(worker, command))
    await worker.lane.handle_delivery(delivery)
    assert await worker.facts() == []
    assert not delivery.was_acked


async def test_a_redelivery_of_what_runs_here_is_adopted(worker: Bench, server: Script) -> None:
    delivery = await taken(worker, waiting(server))
    again = Redelivered(delivery)

    async def then() -> None:
        await worker.lane.handle_delivery(again)
        worker.lane.release_commands()

    facts = await attended(worker, delivery, server.arrived, then)
    assert isinstance(facts[-1], CommandLost)
    assert facts[-1].is_release
    assert len(server.seen) == 1
    assert again.was_acked


async def test_of_two_messages_of_what_runs_here_only_the_newer_is_left_to_settle(
    worker: Bench, server: Script
) -> None:
    """The older one, which nobody prolongs any more, would come to another worker."""
    command = waiting(server)
    delivery = await taken(worker, command)
    copy = await taken(worker, command)
    assert copy.stream_sequence != delivery.stream_sequence
    unsettled_meanwhile: list[int] = []

    async def then() -> None:
        await worker.lane.handle_delivery(copy)
        unsettled_meanwhile.append(await unsettled(worker))
        worker.lane.release_commands()

    facts = await attended(worker, delivery, server.arrived, then)
    assert unsettled_meanwhile == [1]
    assert isinstance(facts[-1], CommandLost)
    assert facts[-1].is_release
    assert len(server.seen) == 1
    assert await unsettled(worker) == 0


async def test_without_confirmed_beats_the_work_stops_and_says_so(
    worker: Bench, server: Script
) -> None:
    delivery = DeafDelivery(await taken(worker, waiting(server, lease_s=1.5)))
    facts = await attended(worker, delivery, server.arrived, lambda: None)
    kinds = [type(fact) for fact in facts if not isinstance(fact, CommandHeartbeat)]
    assert kinds == [CommandStarted, CommandLost]
    assert delivery.was_acked
    assert worker.lane.running_count == 0


async def test_after_its_lease_nothing_is_tried_again(worker: Bench, server: Script) -> None:
    async def stand_still(_request: web.Request) -> web.StreamResponse:
        # The worker stands still, as a process that is stopped.
        threading.Event().wait(1.7)
        return web.Response(status=503)

    server.answers(stand_still, says({"ok": True}))
    step = f"""
  - step: wait
    tool:
      kind: http
      url: "{server.url}"
      spec: {{policy: {{rules: [{{when: "{{{{ output.error.retryable }}}}", then: {{do: retry, attempts: 3, delay: 0}}}}]}}}}
"""
    delivery = await taken(worker, command_of(step, lease_s=1.5, heartbeat_s=0.1))
    facts = await attended(worker, delivery, server.arrived, lambda: None)
    assert isinstance(facts[-1], CommandLost)
    assert len(server.seen) == 1


async def test_confirmed_beats_keep_work_alive_beyond_its_lease(
    worker: Bench, server: Script
) -> None:
    delivery = await taken(worker, waiting(server, lease_s=1.5))

    async def then() -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + 2.0

        async def is_later() -> bool:
            return loop.time() > until

        await eventually(is_later)
        assert worker.lane.running_count == 1
        worker.lane.release_commands()

    await attended(worker, delivery, server.arrived, then)


async def test_a_stop_hint_ends_the_work(worker: Bench, server: Script) -> None:
    command = waiting(server, lease_s=30)
    delivery = await taken(worker, command)
    facts: list[Fact] = []

    async def then() -> None:
        async def is_stopped() -> bool:
            await worker.broker.notify(subjects.build_stop_hint(command.command_id))
            return worker.lane.running_count == 0

        await eventually(is_stopped)

    facts = await attended(worker, delivery, server.arrived, then)
    assert isinstance(facts[-1], CommandStopped)
    assert await unsettled(worker) == 0


async def test_what_is_released_goes_back_without_counting_as_a_failure(
    worker: Bench, server: Script
) -> None:
    delivery = await taken(worker, waiting(server, lease_s=30))
    facts = await attended(worker, delivery, server.arrived, worker.lane.release_commands)
    assert isinstance(facts[-1], CommandLost)
    assert (facts[-1].reason, facts[-1].is_release) == ("released", True)
    assert await unsettled(worker) == 0


async def test_a_malformed_command_is_buried(worker: Bench) -> None:
    subject = subjects.build_command_subject("default", "io", TENANT, ORGANIZATION)
    await worker.broker.publish_message(Message(subject=subject, message_id="x", data=b'{"a": 1}'))
    (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=1)
    await worker.lane.handle_delivery(delivery)
    (dead_letter,) = await MemoryDeadLetters(worker.broker).list_letters(letters_max=10)
    assert dead_letter.data == b'{"a": 1}'
    assert "does not fit its schema" in dead_letter.reason
    assert await worker.facts() == []


async def test_facts_wait_for_a_stream_that_is_away(worker: Bench) -> None:
    delivery = await taken(worker, command_of("\n  - {step: s, tool: {kind: noop}}\n", lease_s=30))
    worker.broker.wipe_all()

    async def then() -> None:
        async def is_waiting() -> bool:
            return worker.lane.running_count == 1

        await eventually(is_waiting)
        await worker.broker.ensure_streams()

    began = asyncio.Event()
    began.set()
    facts = await attended(worker, delivery, began, then)
    assert isinstance(facts[-1], CommandCompleted)


async def test_a_defect_fails_the_command_and_not_the_worker(worker: Bench) -> None:
    step = """
  - step: s
    loop: {in: [1], iterator: x}
    tool: {kind: noop}
"""
    no_list = await worker.payloads.put_payload(
        b"5", tenant_id=TENANT, organization_id=ORGANIZATION, media_type="application/json"
    )
    work = ItemWork(index=5, total=6, collection_ref=no_list)
    facts = await worker.run(command_of(step, work=work))
    assert isinstance(facts[-1], CommandFailed)
    assert (facts[-1].error.kind, facts[-1].error.retryable) == ("internal", True)


async def test_a_definition_of_another_release_fails_the_command(worker: Bench) -> None:
    facts = await worker.run(command_of({"step": "s", "tool": 5}))
    assert isinstance(facts[-1], CommandFailed)
    assert facts[-1].error.kind == "validation"


async def test_a_fact_beyond_the_message_limit_fails_the_command(worker: Bench) -> None:
    # Each of them is too small to be worth a reference.
    written = ", ".join(f"ctx.k{n}: \"{{{{ 'x' * 400 }}}}\"" for n in range(1500))
    step = f"""
  - step: s
    tool: {{kind: noop, set: {{{written}}}}}
"""
    facts = await worker.run(command_of(step))
    assert isinstance(facts[-1], CommandFailed)
    assert facts[-1].error.kind == "payload_too_large"


async def test_no_secret_leaves_the_worker(worker: Bench, server: Script) -> None:
    canary = "canary-0123456789abcdef"
    await worker.put_credential("shop", {"token": canary}, kind="bearer")
    server.answers(says({"echo": f"Bearer {canary}", "pad": "x" * 2000}))
    step = f"""
  - step: s
    tool:
      - {{name: get, kind: http, url: "{server.url}", auth: shop}}
      - {{name: boom, kind: python, input: {{e: "{{{{ get.echo }}}}"}}, code: "raise ValueError(e)"}}
"""
    facts = await worker.run(command_of(step))
    assert server.seen[0].headers["Authorization"] == f"Bearer {canary}"
    failed = facts[-1]
    assert isinstance(failed, CommandFailed)
    assert failed.result is not None
    assert failed.result.reference is not None
    stored = await worker.payloads.read_payload(failed.result.reference)
    assert canary.encode() not in codec.encode_json(facts) + stored
    assert failed.error.message == "Bearer ***"


async def test_a_worker_takes_turns_until_it_is_told_to_stop(worker: Bench, server: Script) -> None:
    service = Worker(
        intake=Intake([worker.commands]),
        lane=worker.lane,
        commands_max=4,
        messages_max=2,
        wait_s=0.1,
    )
    for _ in range(6):
        await worker.send(command_of("\n  - {step: s, tool: {kind: noop}}\n"))
    await worker.send(waiting(server))
    stop = asyncio.Event()
    facts: list[Fact] = []

    async def all_but_one_ended() -> bool:
        facts.extend(await worker.facts())
        return sum(isinstance(fact, CommandCompleted) for fact in facts) == 6

    pulse = LoopHealth("commands", stale_s=30, clock=SystemClock())
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(service.run(stop=stop, loop_health=pulse, drain_s=0.2))
        await server.arrived.wait()
        await eventually(all_but_one_ended)
        stop.set()
    facts.extend(await worker.facts())
    released = [fact for fact in facts if isinstance(fact, CommandLost)]
    assert [fact.is_release for fact in released] == [True]
    assert await unsettled(worker) == 0
