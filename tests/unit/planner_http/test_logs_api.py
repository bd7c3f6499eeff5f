"""The lines of an execution over the API: page by page, followed, and nobody else's."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld, beginning, ending
from tests.support.storage import ORGANIZATION, TENANT, an_execution

from noetl_chassis.seals.credential_seal import TEXT_PREFIX
from noetl_contracts import codec
from noetl_contracts.ids import CommandId, ExecutionId, WorkerId
from noetl_contracts.log_chunks import LogChunk, LogLine, LogSource, build_chunk_name
from noetl_planner.api.app import create_app
from noetl_planner.api.watch.log_chunks import LogChunks, LogFollower

START = datetime(2026, 11, 26, 23, 59, 59, 900_000, tzinfo=UTC)


def chunk_of(
    execution_id: ExecutionId,
    texts: list[str],
    *,
    number: int = 1,
    first: int = 1,
    step: str = "load",
    command: int = 5,
    previous: str = "",
) -> LogChunk:
    return LogChunk(
        execution_id=execution_id,
        command_id=CommandId(str(command)),
        attempt=1,
        writer=f"{command:08x}",
        worker_id=WorkerId("worker-1"),
        step=step,
        number=number,
        previous_sha256=previous,
        first=first,
        sources=(LogSource(task="t", unit="step", task_attempt=1),),
        lines=tuple(
            LogLine(1_000_000 + at, 0, "stdout", "", item) for at, item in enumerate(texts)
        ),
    )


async def put(world: ApiWorld, chunk: LogChunk, at: datetime) -> str:
    data = codec.encode_json(chunk)
    await world.payloads.put_named(
        build_chunk_name(chunk, at), data, tenant_id=TENANT, organization_id=ORGANIZATION
    )
    return codec.digest_hex(data)


async def put_log(world: ApiWorld, execution_id: ExecutionId, count: int = 3) -> None:
    """One log of several chunks of three lines, a minute apart."""
    previous = ""
    for number in range(1, count + 1):
        texts = [f"line {3 * number - 2 + at}" for at in range(3)]
        chunk = chunk_of(
            execution_id, texts, number=number, first=3 * number - 2, previous=previous
        )
        previous = await put(world, chunk, START + timedelta(minutes=number))


async def a_run(world: ApiWorld, *, has_ended: bool = True) -> ExecutionId:
    execution_id = an_execution()
    await world.append(execution_id, [*beginning(), *(ending() if has_ended else [])])
    await world.project(execution_id)
    return execution_id


@asynccontextmanager
async def api_of(world: ApiWorld, **rest: Any) -> AsyncIterator[AsyncTestClient[Any]]:
    async with AsyncTestClient(create_app(world.services(**rest))) as api:
        yield api


async def pages(api: AsyncTestClient[Any], execution_id: str, **params: Any) -> list[Any]:
    found, after, has_more = [], None, True
    while has_more:
        asked = {**params, **({"after": after} if after else {})}
        answer = await api.get(f"/api/executions/{execution_id}/logs", params=asked)
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
        after, has_more = found[-1]["next_after"], found[-1]["has_more"]
    return found


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 9, 1000])
async def test_pages_of_any_size_hold_each_line_once(limit: int) -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    await put_log(world, execution_id)
    async with api_of(world) as api:
        found = await pages(api, execution_id, limit=limit)
    lines = [line for page in found for line in page["lines"]]
    assert [line["text"] for line in lines] == [f"line {at}" for at in range(1, 10)]
    assert [line["sequence"] for line in lines] == list(range(1, 10))
    assert all(len(page["lines"]) <= limit for page in found)
    assert {
        name: lines[0][name] for name in ("log", "step", "task", "attempt", "stream", "at")
    } == {
        "log": "5.1.00000005",
        "step": "load",
        "task": "t",
        "attempt": 1,
        "stream": "stdout",
        "at": "1970-01-01T00:00:01Z",
    }


async def test_the_lines_of_one_step_are_found_by_its_name() -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    await put_log(world, execution_id)
    await put(world, chunk_of(execution_id, ["other"], step="säve it", command=6), START)
    async with api_of(world) as api:
        (page,) = await pages(api, execution_id, step="säve it")
        nothing = await pages(api, execution_id, step="never")
    assert [line["text"] for line in page["lines"]] == ["other"]
    assert nothing[0]["lines"] == []


@pytest.mark.parametrize("after", ["x", "20261126T2359/59900000-x", "../../creds@1", "@1", "x@y"])
async def test_a_place_that_no_page_named_is_refused(after: str) -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    async with api_of(world) as api:
        answer = await api.get(f"/api/executions/{execution_id}/logs", params={"after": after})
    assert answer.status_code == 400
    assert "next_after" in answer.json()["hint"]


async def test_a_log_that_was_changed_or_lacks_a_chunk_says_so() -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    changed = chunk_of(execution_id, ["one"])
    await put(world, changed, START)
    other = chunk_of(execution_id, ["two"], number=2, first=2, previous="0" * 64)
    await put(world, other, START + timedelta(seconds=1))
    async with api_of(world) as api:
        (page,) = await pages(api, execution_id)
    shown = [(line["stream"], line["text"]) for line in page["lines"]]
    assert shown == [
        ("stdout", "one"),
        ("notice", "lines before this one were changed or are missing"),
        ("stdout", "two"),
    ]


async def test_sealed_values_are_not_shown() -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    sealed = f"{TEXT_PREFIX}01234567:abcdefgh"
    await put(world, chunk_of(execution_id, [f"is {sealed}"]), START)
    async with api_of(world) as api:
        page = (await pages(api, execution_id))[0]
        stream = await api.get(f"/api/executions/{execution_id}/logs/stream")
    assert "abcdefgh" not in str(page) + stream.text


async def test_the_stream_of_an_execution_that_has_ended_holds_everything_and_ends() -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    await put_log(world, execution_id)
    async with api_of(world) as api:
        answer = await api.get(f"/api/executions/{execution_id}/logs/stream")
    text = answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    places = [text.index(f'"line {at}"') for at in range(1, 10)]
    assert places == sorted(places)
    assert text.count("event: lines") == 3
    assert text.rstrip().endswith("data: {}")


async def test_a_follower_sees_chunks_as_they_come_late_ones_too_and_each_once() -> None:
    world = ApiWorld()
    execution_id = await a_run(world, has_ended=False)
    services = world.services()
    follower = LogFollower(LogChunks(services, execution_id), services)
    found: list[str] = []
    now = services.clock.now()

    async def put_next(text: str, command: int, at: datetime) -> None:
        await put(world, chunk_of(execution_id, [text], command=command), at)

    await put_next("first", 1, now)
    async for read in follower.read_chunks():
        if read is not None and read.chunk is not None:
            found += [line.text for line in read.chunk.lines]
        elif found == ["first"]:
            await put_next("of a slow clock", 2, now - timedelta(seconds=90))
            await put_next("of a fast clock", 3, now + timedelta(seconds=90))
        elif len(found) == 3:
            await put_next("last", 4, services.clock.now())
            await world.append(execution_id, ending())
            await world.project(execution_id)
    assert found == ["first", "of a slow clock", "of a fast clock", "last"]


async def test_who_connects_again_misses_no_line_of_the_minutes_before() -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    await put_log(world, execution_id, count=6)
    async with api_of(world) as api:
        (page,) = await pages(api, execution_id)
        again = await api.get(
            f"/api/executions/{execution_id}/logs/stream",
            headers={"Last-Event-ID": page["next_after"]},
        )
    assert '"line 1"' not in again.text
    assert '"line 18"' in again.text


async def test_a_drained_planner_ends_its_streams() -> None:
    world = ApiWorld()
    execution_id = await a_run(world, has_ended=False)
    services = world.services()
    follower = LogFollower(LogChunks(services, execution_id), services)
    async with asyncio.timeout(60):
        async for _ in follower.read_chunks():
            world.stop.set()
