# ruff: noqa: E501 - a playbook reads best with one task to a line
"""Commands that run several items: in order, each with an end of its own, none held for long."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from tests.support.polling import eventually
from tests.support.scripted import Script, hangs, says, script
from tests.support.working import ORGANIZATION, RUN, TENANT, Bench, bench, command_of

from noetl_contracts import codec
from noetl_contracts.commands.command_work import BatchWork, Command
from noetl_contracts.commands.loop_collections import CollectionForm
from noetl_contracts.requests.facts import (
    CommandCompleted,
    CommandFailed,
    CommandParked,
    CommandStarted,
    Fact,
    ItemsReturned,
)
from noetl_worker.runner import item_batch

SPEC = "{mode: parallel}"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an item take as long as it does on a busy machine, and keep the others."""
    monkeypatch.setattr(item_batch, "HELD_S", 60.0)


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench(lease_s=5.0) as found:
        yield found


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script() as found:
        yield found


def batch(tool: str, indexes: Sequence[int], *, attempt: int = 1, ctx: Any = None) -> Command:
    step = f"\n  - step: each\n    loop: {{in: '{{{{ workload.n }}}}', iterator: it, spec: {SPEC}}}\n    tool: {tool}\n"
    work = BatchWork(indexes=list(indexes), total=100, form=CollectionForm.RANGE)
    return command_of(step, work=work, attempt=attempt, ctx=ctx)


def ends(told: Sequence[Fact]) -> list[tuple[str, Any]]:
    """What was told of items, in order."""
    return [
        (type(fact).__name__, fact.items if isinstance(fact, ItemsReturned) else fact.item_index)
        for fact in told
        if isinstance(fact, CommandCompleted | CommandFailed | CommandParked | ItemsReturned)
    ]


async def test_items_run_in_order_and_end_one_by_one(worker: Bench) -> None:
    tool = "{kind: noop, result: '{{ [iter.it, 6 // (iter.it - 5), iter._key] }}'}"
    command = batch(tool, [4, 5, 8])
    told = await worker.run(command)
    assert isinstance(told[0], CommandStarted)
    assert ends(told) == [("CommandCompleted", 4), ("CommandFailed", 5), ("CommandCompleted", 8)]
    assert {fact.command_id for fact in told} == {command.command_id}  # type: ignore[union-attr]  # it has one
    first, second, third = told[1:]
    assert isinstance(first, CommandCompleted)
    assert isinstance(second, CommandFailed)
    assert isinstance(third, CommandCompleted)
    assert await worker.value(first.result) == [4, -6, f"{RUN}:4"]
    assert await worker.value(third.result) == [8, 2, f"{RUN}:8"]
    assert second.error.step == "each"


async def test_no_item_sees_what_another_wrote(worker: Bench) -> None:
    tool = "{kind: noop, result: '{{ ctx.seen }}', set: {ctx.seen: '{{ iter.it }}'}}"
    told = await worker.run(batch(tool, [1, 2], ctx={"seen": 0}))
    results = [fact for fact in told if isinstance(fact, CommandCompleted)]
    assert [await worker.value(fact.result) for fact in results] == [0, 0]
    assert [fact.patch for fact in results] == [{"seen": 1}, {"seen": 2}]


async def test_what_has_not_begun_is_given_back_when_an_item_takes_long(
    worker: Bench, server: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_batch, "HELD_S", 2.0)
    server.answers(says({}), hangs())
    tool = f"{{kind: http, url: '{server.url}', timeout: 60}}"
    await worker.send(batch(tool, [0, 1, 2, 3]))
    (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=1)
    told: list[Fact] = []

    async def is_given_back() -> bool:
        told.extend(await worker.facts())
        return any(isinstance(fact, ItemsReturned) for fact in told)

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(worker.lane.handle_delivery(delivery))
        await eventually(is_given_back)
        worker.lane.release_commands()
    assert ends(told) == [("CommandCompleted", 0), ("ItemsReturned", [2, 3])]


async def test_a_worker_that_leaves_gives_back_what_has_not_begun(
    worker: Bench, server: Script
) -> None:
    server.answers(hangs(), says({}))
    tool = f"{{kind: http, url: '{server.url}', timeout: 0.3}}"
    await worker.send(batch(tool, [0, 1, 2]))
    (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(worker.lane.handle_delivery(delivery))
        await server.arrived.wait()
        worker.lane.drain_slots()
    assert ends(await worker.facts()) == [("CommandFailed", 0), ("ItemsReturned", [1, 2])]


async def test_an_item_that_waits_long_parks_and_the_others_are_given_back(
    worker: Bench, server: Script
) -> None:
    server.answers(says({}, status=503))
    rules = "{rules: [{when: '{{ output.error }}', then: {do: retry, attempts: 3, delay: 60}}]}"
    tool = f"{{kind: http, url: '{server.url}', spec: {{policy: {rules}}}}}"
    told = await worker.run(batch(tool, [7, 8]))
    assert ends(told) == [("CommandParked", 7), ("ItemsReturned", [8])]


async def test_after_a_loss_each_end_is_stored_before_the_next_item_begins(worker: Bench) -> None:
    await worker.run(batch("{kind: noop}", [0, 1, 2]))
    assert len(await worker.batches()) == 0
    await worker.send(batch("{kind: noop}", [0, 1, 2], attempt=2))
    (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=1)
    await worker.lane.handle_delivery(delivery)
    messages = await worker.batches()
    assert [len(ends(message.facts)) for message in messages] == [1, 1, 1]


async def test_items_of_a_batch_are_read_where_their_collection_is_stored(worker: Bench) -> None:
    reference = await worker.payloads.put_payload(
        codec.encode_json([{"n": n} for n in range(10)]),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type="application/json",
    )
    step = f"\n  - step: each\n    loop: {{in: '{{{{ rows }}}}', iterator: it, spec: {SPEC}}}\n    tool: {{kind: noop, result: '{{{{ iter.it.n }}}}'}}\n"
    work = BatchWork(indexes=[2, 5, 9], total=10, collection_ref=reference)
    told = await worker.run(command_of(step, work=work))
    results = [fact for fact in told if isinstance(fact, CommandCompleted)]
    assert [await worker.value(fact.result) for fact in results] == [2, 5, 9]


async def test_an_item_that_writes_too_much_fails_alone(
    worker: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that fits no message would end the items beside it."""
    monkeypatch.setattr(item_batch, "FACTS_BYTES_MAX", item_batch._REPORT_BYTES + 100)
    tool = "{kind: noop, set: {ctx.many: \"{{ 'x' * (100 if iter.it == 1 else 1) }}\"}}"
    told = await worker.run(batch(tool, [0, 1, 2]))
    assert ends(told) == [("CommandCompleted", 0), ("CommandFailed", 1), ("CommandCompleted", 2)]
    (failure,) = [fact for fact in told if isinstance(fact, CommandFailed)]
    assert failure.error.kind == "payload_too_large"


async def test_an_item_takes_as_long_as_its_tasks_and_the_waits_between_their_tries(
    worker: Bench, server: Script
) -> None:
    server.answers(says({}, status=503), says({}))
    rules = "{rules: [{when: '{{ output.error }}', then: {do: retry, attempts: 3, delay: 2}}]}"
    tool = f"{{kind: http, url: '{server.url}', spec: {{policy: {rules}}}}}"
    told = await worker.run(batch(tool, [0, 1]))
    waited, quick = [fact.metrics for fact in told if isinstance(fact, CommandCompleted)]
    assert waited["elapsed_ms"] >= 2000
    assert quick["elapsed_ms"] < waited["elapsed_ms"]
