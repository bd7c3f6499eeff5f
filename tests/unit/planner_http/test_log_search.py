"""Lines are looked for where they are kept: by text, step, stream and attempt, page by page."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs
from tests.support.api import ApiWorld
from tests.unit.planner_http.test_logs_api import START, a_run, api_of, chunk_of, pages, put

from noetl_chassis.seals.credential_seal import TEXT_PREFIX
from noetl_contracts.ids import ExecutionId
from noetl_contracts.log_chunks import LogChunk, LogLine
from noetl_planner.api.watch import log_chunks, log_pages
from noetl_planner.api.watch.log_filter import LogFilter, LogStream


async def search(world: ApiWorld, execution_id: ExecutionId, **query: Any) -> list[str]:
    async with api_of(world) as api:
        found = await pages(api, execution_id, **query)
    return [line["text"] for page in found for line in page["lines"]]


def of_attempt(chunk: LogChunk, attempt: int) -> LogChunk:
    return structs.replace(chunk, attempt=attempt, writer=f"a{attempt:07x}")


def of_stream(chunk: LogChunk, stream: str) -> LogChunk:
    lines = tuple(LogLine(line.at_us, 0, stream, "", line.text) for line in chunk.lines)
    return structs.replace(chunk, lines=lines)


async def a_log(world: ApiWorld) -> ExecutionId:
    """Three steps, of which one has two attempts and one writes to another stream."""
    execution_id = await a_run(world)
    chunks = [
        chunk_of(execution_id, ["Begin", "row 1 failed", "row 2"], command=1),
        of_attempt(chunk_of(execution_id, ["begin again", "row 3 FAILED"], command=1), 2),
        chunk_of(execution_id, ["begin of save"], step="save", command=2),
        of_stream(chunk_of(execution_id, ["failed badly"], step="tell", command=3), "stderr"),
    ]
    for number, chunk in enumerate(chunks):
        await put(world, chunk, START + timedelta(seconds=number))
    return execution_id


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"text": "failed"}, ["row 1 failed", "row 3 FAILED", "failed badly"]),
        ({"text": "BEGIN"}, ["Begin", "begin again", "begin of save"]),
        ({"text": "failed", "step": "load"}, ["row 1 failed", "row 3 FAILED"]),
        ({"text": "failed", "attempt": 2}, ["row 3 FAILED"]),
        ({"stream": "stderr"}, ["failed badly"]),
        ({"stream": "stderr", "text": "row"}, []),
        ({"attempt": 2}, ["begin again", "row 3 FAILED"]),
        ({"text": "%"}, []),
        ({"text": ".*"}, []),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 1000])
async def test_each_line_that_is_looked_for_is_found_once(
    query: dict[str, Any], found: list[str], limit: int
) -> None:
    world = ApiWorld()
    assert await search(world, await a_log(world), limit=limit, **query) == found


async def test_a_page_says_how_many_lines_were_looked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(log_pages, "_CHUNKS_MAX", 2)
    world = ApiWorld()
    execution_id = await a_log(world)
    async with api_of(world) as api:
        found = await pages(api, execution_id, text="badly")
    assert [(len(page["lines"]), page["has_more"]) for page in found] == [
        (0, True),
        (0, True),
        (1, False),
    ]
    assert sum(page["lines_read"] for page in found) == 7


async def test_names_are_listed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_chunks, "_NAMES_LISTED_MAX", 1)
    world = ApiWorld()
    assert len(await search(world, await a_log(world))) == 7


async def test_what_is_masked_is_not_found() -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    sealed = f"{TEXT_PREFIX}01234567:abcdefgh"
    await put(world, chunk_of(execution_id, [f"is {sealed}"]), START)
    assert await search(world, execution_id, text="abcdefgh") == []
    assert await search(world, execution_id, text="01234567") == []
    assert await search(world, execution_id, text="is ***") == ["is ***"]


async def test_a_log_that_is_not_whole_says_so_to_who_looks_for_something_else() -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    other = chunk_of(execution_id, ["two"], number=2, first=2, previous="0" * 64)
    await put(world, chunk_of(execution_id, ["one"]), START)
    await put(world, other, START + timedelta(seconds=1))
    for limit in (1, 1000):
        assert await search(world, execution_id, text="nothing", limit=limit) == [
            "lines before this one were changed or are missing"
        ]


async def test_a_chunk_that_cannot_be_read_is_told_of_once() -> None:
    world = ApiWorld()
    execution_id = await a_run(world)
    name = log_chunks.build_chunk_prefix(execution_id) + (
        "20261126T2359/59900000-0123456789ab-5.1.00000005-1"
    )
    await world.payloads.put_named(name, b"{}", **world.services().tenant_scope)
    async with api_of(world) as api:
        (page,) = await pages(api, execution_id)
        again = await pages(api, execution_id, after=page["next_after"])
    assert [line["text"] for line in page["lines"]] == ["a chunk of this log cannot be read"]
    assert again[0]["lines"] == []


async def test_the_stream_sends_what_is_looked_for_and_places_behind_the_rest() -> None:
    world = ApiWorld()
    execution_id = await a_log(world)
    async with api_of(world) as api:
        answer = await api.get(
            f"/api/executions/{execution_id}/logs/stream", params={"text": "badly"}
        )
    assert "failed badly" in answer.text
    assert "Begin" not in answer.text
    assert answer.text.count("id: ") == 4


@pytest.mark.parametrize("query", [{"stream": "other"}, {"attempt": -1}, {"text": "x" * 201}])
async def test_a_question_that_makes_no_sense_is_refused(query: dict[str, Any]) -> None:
    world = ApiWorld()
    execution_id = await a_log(world)
    async with api_of(world) as api:
        answer = await api.get(f"/api/executions/{execution_id}/logs", params=query)
    assert answer.status_code == 400, answer.text


async def test_an_attempt_that_wrote_nothing_is_said() -> None:
    world = ApiWorld()
    execution_id = await a_log(world)
    async with api_of(world) as api:
        (page,) = await pages(api, execution_id, step="load", attempt=7)
    assert page["note"] == "attempt 7 of step 'load' wrote nothing"


def test_case_is_folded_as_languages_do() -> None:
    line = LogLine(0, 0, "stdout", "", "Große Straße")
    assert LogFilter(text="STRASSE").covers_line(line)
    assert not LogFilter(text="STRASSE", stream=LogStream.STDERR).covers_line(line)


def test_lines_are_wanted_up_to_the_microsecond_of_a_moment() -> None:
    wanted = LogFilter(until_us=2_000_000)
    covered = [
        wanted.covers_line(LogLine(at, 0, "stdout", "", "")) for at in (0, 2 * 10**6, 2_000_001)
    ]
    assert covered == [True, True, False]
    assert wanted.is_of_lines
