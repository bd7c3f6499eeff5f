"""A stop in the middle of a call: what was asked of others ends with the work that asked."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest
from aiohttp import web
from tests.integration.worker.test_slot import (
    TABLES,
    add,
    frame_id,
    loop_of,
    of,
    slot_of,
)
from tests.support.polling import eventually
from tests.support.processes import count_running, make_nap
from tests.support.scripted import Script, says
from tests.support.working import Bench, bench, command_of

from noetl_contracts import subjects
from noetl_contracts.commands.command_work import Command
from noetl_contracts.requests.facts import (
    CommandCompleted,
    CommandFailed,
    CommandLost,
    CommandStopped,
    Fact,
    FrameClosed,
    FrameOpened,
    SlotDry,
)

Until = Callable[[], Awaitable[bool]]
Observer = Any


@pytest.fixture
async def worker(database: str) -> AsyncIterator[Bench]:
    async with bench() as found:
        await found.put_credential("db", {"dsn": database})
        yield found


@pytest.fixture
async def observer(database: str) -> AsyncIterator[Observer]:
    connection = await asyncpg.connect(database)
    yield connection
    await connection.close()


async def stopped_when(worker: Bench, command: Command, begun: Until) -> list[Fact]:
    """Run a command, stop it once it has begun, and return its facts."""
    await worker.send(command)
    (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(worker.lane.handle_delivery(delivery))
        await eventually(begun)

        async def is_stopped() -> bool:
            await worker.broker.notify(subjects.build_stop_hint(command.command_id))
            return worker.lane.running_count == 0

        await eventually(is_stopped)
    return await worker.facts()


def assert_only_stopped(facts: list[Fact]) -> None:
    assert isinstance(facts[-1], CommandStopped)
    assert not of(facts, CommandFailed) + of(facts, CommandCompleted)  # type: ignore[operator]  # lists of facts


async def test_a_slow_request_is_broken_off_and_its_server_sees_it(
    worker: Bench, server: Script
) -> None:
    event = asyncio.Event()

    async def waits(request: web.Request) -> web.StreamResponse:
        async def is_gone() -> bool:
            return request.transport is None or request.transport.is_closing()

        await eventually(is_gone)
        event.set()
        return web.Response()

    server.answers(waits)
    rule = "{when: \"{{ output.status == 'error' }}\", then: {do: retry, attempts: 5}}"
    command = command_of(
        f"\n  - step: s\n    tool: {{kind: http, url: '{server.url}', timeout: 60,"
        f" spec: {{policy: {{rules: [{rule}]}}}}}}\n"
    )

    async def begun() -> bool:
        return server.arrived.is_set()

    facts = await stopped_when(worker, command, begun)
    assert_only_stopped(facts)
    async with asyncio.timeout(60):
        await event.wait()
    # No rule was asked whether to try again.
    assert len(server.seen) == 1


SLEEPING = (
    "select count(*) from pg_stat_activity where query like '%pg_sleep(61)%'"
    " and state = 'active' and pid <> pg_backend_pid()"
)


@pytest.mark.parametrize(
    "query",
    [
        "select pg_sleep(61)",
        "create table half(i int); insert into half values (1); select pg_sleep(61)",
    ],
)
async def test_a_statement_is_cancelled_on_its_server(
    worker: Bench, observer: Observer, query: str
) -> None:
    command = command_of(
        f'\n  - step: s\n    tool: {{kind: postgres, auth: db, query: "{query}"}}\n'
    )

    async def begun() -> bool:
        return bool(await observer.fetchval(SLEEPING))

    async def is_gone() -> bool:
        return not await observer.fetchval(SLEEPING)

    assert_only_stopped(await stopped_when(worker, command, begun))
    await eventually(is_gone)
    assert await observer.fetchval("select to_regclass('half')") is None
    # The pool goes on with connections that nobody has interrupted.
    facts = await worker.run(
        command_of("\n  - step: s\n    tool: {kind: postgres, auth: db, query: select 1 as one}\n")
    )
    assert isinstance(facts[-1], CommandCompleted)


@pytest.mark.parametrize(
    "wait", ["import time\ntime.sleep(600)", "import asyncio\nawait asyncio.sleep(600)"]
)
async def test_python_code_is_ended_with_all_that_it_started(worker: Bench, wait: str) -> None:
    nap = make_nap()
    code = f"import subprocess\nsubprocess.Popen(['/bin/sleep', '{nap}'])\n{wait}"
    step = {"kind": "python", "code": code}
    command = command_of(f"\n  - step: s\n    tool: {step!r}\n")

    async def begun() -> bool:
        return count_running(nap) == 1

    async def is_gone() -> bool:
        return count_running(nap) == 0

    assert_only_stopped(await stopped_when(worker, command, begun))
    await eventually(is_gone)


@pytest.mark.parametrize(
    "tool",
    [
        # A wait between two tries.
        (
            "[{name: t, kind: noop, spec: {policy: {rules:"
            " [{else: {then: {do: retry, attempts: 3, delay: 4}}}]}}}]"
        ),
        # Jumps that wait for nothing.
        (
            "[{name: a, kind: noop}, {name: b, kind: noop, spec: {policy: {rules:"
            " [{else: {then: {do: jump, to: a}}}]}}}]"
        ),
    ],
)
async def test_waits_and_jumps_hear_a_stop(worker: Bench, tool: str) -> None:
    async def begun() -> bool:
        return worker.lane.running_count == 1

    command = command_of(f"\n  - step: s\n    tool: {tool}\n")
    assert_only_stopped(await stopped_when(worker, command, begun))


async def test_a_playbook_lowers_the_number_of_jumps(worker: Bench) -> None:
    command = command_of(
        "\n  - step: s\n    tool: [{name: a, kind: noop}, {name: b, kind: noop, spec: {policy:"
        " {rules: [{else: {then: {do: jump, to: a}}}]}}}]\n",
        limits={"max_jumps": 3},
    )
    facts = await worker.run(command)
    (failed,) = of(facts, CommandFailed)
    assert (failed.error.kind, failed.error.code) == ("limit", "max_jumps")


async def test_more_attempts_than_the_limit_are_an_error(worker: Bench) -> None:
    command = command_of(
        "\n  - step: s\n    tool: {kind: python, code: 'raise ValueError()', spec: {policy:"
        " {rules: [{else: {then: {do: retry, attempts: 9}}}]}}}\n",
        limits={"attempts": 2},
    )
    (failed,) = of(await worker.run(command), CommandFailed)
    assert (failed.error.kind, failed.error.code) == ("limit", "attempts")


async def test_rows_that_wait_for_nothing_hear_a_stop(worker: Bench, observer: Observer) -> None:
    await observer.execute(TABLES)
    await add(observer, 60_000)
    slot = slot_of(loop_of("{kind: noop}"), frame={"max_rows": 60_000, "max_seconds": 600})

    async def begun() -> bool:
        return bool(await observer.fetchval("select count(*) from jobs where frame_id is not null"))

    facts = await stopped_when(worker, slot, begun)
    assert_only_stopped(facts)
    assert not of(facts, FrameClosed)


@pytest.mark.parametrize("transaction", [False, True])
async def test_the_statement_of_a_row_is_cancelled_on_its_server(
    worker: Bench,
    observer: Observer,
    transaction: bool,  # noqa: FBT001 - what the test is about
) -> None:
    await observer.execute(TABLES)
    await add(observer, 3)
    sleep = "{kind: postgres, auth: db, query: 'select pg_sleep(61)'}"
    slot = slot_of(loop_of(sleep), frame={"transaction": transaction})

    async def begun() -> bool:
        return bool(await observer.fetchval(SLEEPING))

    async def is_gone() -> bool:
        return not await observer.fetchval(SLEEPING)

    assert_only_stopped(await stopped_when(worker, slot, begun))
    await eventually(is_gone)


async def test_a_held_slot_ends_before_its_next_claim(
    worker: Bench, observer: Observer, server: Script
) -> None:
    await observer.execute(TABLES)
    await add(observer, 9)
    held = asyncio.Event()

    async def answer(_request: web.Request) -> web.StreamResponse:
        await held.wait()
        return web.json_response({})

    server.answers(answer, says({}))
    slot = slot_of(loop_of(f"{{kind: http, url: '{server.url}'}}"))
    await worker.send(slot)
    (delivery,) = await worker.commands.fetch_batch(messages_max=1, wait_s=1)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(worker.lane.handle_delivery(delivery))
        await server.arrived.wait()

        async def is_listening() -> bool:
            return subjects.build_pause_hint(slot.command_id) in worker.broker.watched_subjects

        await eventually(is_listening)
        await worker.broker.notify(subjects.build_pause_hint(slot.command_id))
        held.set()
    facts = await worker.facts()
    assert [item.frame_id for item in of(facts, FrameOpened)] == [frame_id(0)]
    assert [item.row_count for item in of(facts, FrameClosed)] == [3]
    assert not of(facts, SlotDry)
    assert isinstance(facts[-1], CommandLost)
    assert facts[-1].is_release


async def test_a_command_of_a_halted_execution_does_not_begin(
    worker: Bench, server: Script
) -> None:
    server.answers(says({}))
    command = command_of(f"\n  - {{step: s, tool: {{kind: http, url: '{server.url}'}}}}\n")
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(worker.lane.listen_for_cancellations())

        async def is_listening() -> bool:
            return subjects.HALTED in worker.broker.watched_subjects

        await eventually(is_listening)
        await worker.broker.notify(subjects.build_halted_hint(command.execution_id))

        async def is_known() -> bool:
            return command.execution_id in worker.halts

        await eventually(is_known)
        listening.cancel()
    (fact,) = await worker.run(command)
    assert isinstance(fact, CommandStopped)
    assert server.seen == []
    assert await worker.commands.count_pending() == (0, 0)
