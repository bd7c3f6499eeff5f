"""Facts that are ready together travel together, and nothing leaves for whoever has given up."""

import asyncio
from collections.abc import Sequence
from functools import partial

import pytest
from msgspec import structs
from tests.support.polling import eventually
from tests.support.working import WORKER, command_of

from noetl_chassis.clock import SystemClock
from noetl_contracts.commands.command_work import Command
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import CommandHeartbeat, Fact, FactBatch
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import MESSAGE_BYTES_MAX, Message
from noetl_worker.commands import fact_publisher
from noetl_worker.commands.fact_publisher import (
    KEYS_SEPARATOR,
    LETTERS_MAX,
    AttemptReporter,
    FactBatcher,
    FactBundle,
    FactPublisher,
    ReportRoute,
)
from noetl_worker.domain.secret_mask import SecretMask

STEP = {"step": "s", "tool": [{"name": "t", "kind": "noop"}]}


class Stream:
    """Takes messages while its gate is open; the first few it refuses."""

    def __init__(self, *, refusals: int = 0) -> None:
        self.messages: list[Message] = []
        self.asked = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._refusals = refusals

    async def publish_message(self, message: Message) -> None:
        self.asked += 1
        await self.gate.wait()
        if self.asked <= self._refusals:
            raise MessagingUnavailable("not now")
        self.messages.append(message)

    async def publish_batch(self, messages: Sequence[Message]) -> list[bool]:
        raise AssertionError("facts are published one message at a time")

    async def is_asked(self) -> bool:
        return self.asked > 0

    @property
    def batches(self) -> list[FactBatch]:
        return [facts.decode_fact_batch(message.data) for message in self.messages]

    @property
    def units(self) -> list[str]:
        """Which commands the messages tell of, in order."""
        return [fact.command_id for batch in self.batches for fact in batch.facts]  # type: ignore[union-attr]  # all are of commands


def publisher_of(stream: Stream) -> FactPublisher:
    return FactPublisher(
        publisher=stream,
        worker_id=WORKER,
        route=ReportRoute(routes=IngestRoutes(shard_count=1)),
        mask=SecretMask(),
        clock=SystemClock(),
    )


def beat(command: Command) -> Fact:
    return CommandHeartbeat(command_id=command.command_id, attempt=1, worker_id=WORKER)


def letter(name: str, *, size_bytes: int = 10, command: Command | None = None) -> FactBundle:
    """A letter whose facts are not read by anybody."""
    return FactBundle(
        key=name, command=command or command_of(STEP), facts=[b'"' + b"x" * size_bytes]
    )


async def test_what_ends_in_the_same_turn_travels_as_one_message() -> None:
    stream, commands = Stream(), [command_of(STEP) for _ in range(5)]
    publisher = publisher_of(stream)
    async with asyncio.TaskGroup() as group:
        for number, command in enumerate(commands):
            group.create_task(publisher.publish_facts(command, [beat(command)], key=f"k{number}"))
    (message,), (batch,) = stream.messages, stream.batches
    assert stream.units == [command.command_id for command in commands]
    assert message.message_id == KEYS_SEPARATOR.join(f"k{number}" for number in range(5))
    assert batch.key == "k0"


async def test_what_comes_while_a_message_is_on_its_way_goes_with_the_next() -> None:
    stream = Stream()
    publisher, commands = publisher_of(stream), [command_of(STEP) for _ in range(4)]
    stream.gate.clear()
    async with asyncio.TaskGroup() as group:
        for number, command in enumerate(commands):
            group.create_task(publisher.publish_facts(command, [beat(command)], key=f"k{number}"))
            await eventually(stream.is_asked)
        stream.gate.set()
    assert [message.message_id for message in stream.messages] == ["k0", "k1+k2+k3"]


async def test_executions_never_share_a_message() -> None:
    stream, one = Stream(), command_of(STEP)
    publisher, other = publisher_of(stream), structs.replace(one, execution_id=ExecutionId("7"))
    await asyncio.gather(
        *(publisher.publish_facts(item, [beat(item)], key="k") for item in (one, other))
    )
    assert {batch.execution_id for batch in stream.batches} == {one.execution_id, "7"}


async def test_of_whoever_gives_up_before_nothing_leaves() -> None:
    stream, sent = Stream(), []
    publisher = publisher_of(stream)
    stream.gate.clear()
    for number in range(3):
        command = command_of(STEP)
        sent.append(
            asyncio.ensure_future(
                publisher.publish_facts(command, [beat(command)], key=f"k{number}")
            )
        )
        await eventually(stream.is_asked)
    sent[1].cancel()
    await asyncio.wait([sent[1]])
    stream.gate.set()
    await asyncio.gather(sent[0], sent[2])
    assert [message.message_id for message in stream.messages] == ["k0", "k2"]


async def test_when_the_one_that_sends_for_all_gives_up_another_does() -> None:
    stream, commands = Stream(), [command_of(STEP) for _ in range(3)]
    publisher = publisher_of(stream)
    stream.gate.clear()
    sent = [
        asyncio.ensure_future(publisher.publish_facts(command, [beat(command)], key=f"k{number}"))
        for number, command in enumerate(commands)
    ]
    await eventually(stream.is_asked)
    sent[0].cancel()
    await asyncio.wait([sent[0]])
    stream.gate.set()
    await asyncio.gather(*sent[1:])
    assert [message.message_id for message in stream.messages] == ["k1+k2"]


async def test_a_message_holds_no_more_than_it_may() -> None:
    stream = Stream()
    post = FactBatcher(
        publisher=stream, producer=WORKER, route=ReportRoute(routes=IngestRoutes(shard_count=1))
    )
    many = [letter(f"k{number}") for number in range(LETTERS_MAX + 1)]
    large = [letter(f"l{number}", size_bytes=MESSAGE_BYTES_MAX // 3) for number in range(3)]
    await asyncio.gather(*(post.send_bundle(item) for item in [*many, *large]))
    assert [message.message_id.count(KEYS_SEPARATOR) + 1 for message in stream.messages] == [
        LETTERS_MAX,
        3,
        1,
    ]
    assert all(len(message.data) <= MESSAGE_BYTES_MAX for message in stream.messages)


async def test_what_the_stream_refuses_is_sent_again_under_the_same_name() -> None:
    stream, commands = Stream(refusals=3), [command_of(STEP) for _ in range(3)]
    publisher = publisher_of(stream)
    await asyncio.gather(
        *(
            publisher.publish_facts(item, [beat(item)], key=f"k{number}")
            for number, item in enumerate(commands)
        )
    )
    assert sorted(stream.units) == sorted(command.command_id for command in commands)


async def test_a_reporter_says_first_that_work_began() -> None:
    stream, command = Stream(), command_of(STEP)
    reporter = AttemptReporter(fact_publisher=publisher_of(stream), command=command, holder="7")
    reporter.report_facts(beat(command))
    await reporter.flush_facts()
    reporter.report_facts(beat(command), beat(command))
    await reporter.flush_facts()
    kinds = [[type(fact).__name__ for fact in batch.facts] for batch in stream.batches]
    assert kinds == [["CommandStarted", "CommandHeartbeat"], ["CommandHeartbeat"] * 2]
    assert [message.message_id for message in stream.messages] == [
        f"{command.command_id}/1/7/0",
        f"{command.command_id}/1/7/1",
    ]


async def is_within(start_s: float, end_s: float, *, every_s: float) -> bool:
    """Tell whether the current span of `every_s` is between two of its moments."""
    return start_s <= asyncio.get_running_loop().time() % every_s < end_s


async def test_facts_that_linger_leave_together_whenever_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fact_publisher, "LINGER_S", 3.0)
    stream, commands = Stream(), [command_of(STEP) for _ in range(3)]
    publisher = publisher_of(stream)
    reporters = [
        AttemptReporter(fact_publisher=publisher, command=item, holder="7") for item in commands
    ]
    running = [asyncio.create_task(item.publish_until_cancelled()) for item in reporters]
    for number, (command, reporter) in enumerate(zip(commands, reporters, strict=True)):
        # Each a while after the one before, and all of them between the same two moments.
        # The first comes early in the span, so that a busy machine has seconds for the others.
        end_s = 3.0 if number else 0.5
        await eventually(partial(is_within, 0.1 * number, end_s, every_s=3.0))
        reporter.report_facts(beat(command), lingers=True)
    assert not stream.messages
    await eventually(stream.is_asked)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    assert [len(batch.facts) for batch in stream.batches] == [6]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_letter_is_sent_once(*, is_stored: bool) -> None:
    stream = Stream()
    one = letter("k")
    one.is_stored = is_stored
    await publisher_of(stream).send_bundle(one)
    await publisher_of(stream).send_bundle(one)
    assert len(stream.messages) == (0 if is_stored else 1)
