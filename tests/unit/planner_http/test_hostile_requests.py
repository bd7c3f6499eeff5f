"""Requests that mean harm: each is answered, and none holds the event loop or takes all places."""

import time
from collections.abc import AsyncIterator
from http import HTTPStatus

import httpx
import msgspec
import pytest
from tests.support.api import ApiWorld, beginning
from tests.support.loop_lag import watch_loop

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.app import create_app
from noetl_planner.api.http import bodies
from noetl_planner.api.http.limiters import FollowerLimiter, FollowerLimits

MIB = 1024 * 1024
# The largest body that is accepted is decoded at once; no other one may hold the loop much longer.
DECODINGS_MAX = 4
BODIES = {
    "brackets that open": b"[" * (4 * MIB - 1),
    "brackets that close": b"[]" * (2 * MIB - 1),
    "brackets that close in a list": b"[" + b"[]," * (MIB) + b"[]]",
    "as many values as there may be": b"[" + b"{}," * (bodies.HOLDERS_MAX - 2) + b"{}]",
    "numbers": b"[" + b"1," * 1_000_000 + b"1]",
    "small keys": b"{" + b",".join(b'"%d":1' % n for n in range(400_000)) + b"}",
    "one key many times": b"{" + b'"a":1,' * 400_000 + b'"a":1}',
    "rows of a workload": b'{"path":"demo/hello","workload":{"a":['
    + b"{}," * (bodies.HOLDERS_MAX - 10)
    + b"{}]}}",
    "braces": b'{"a":' * (800_000),
    "brackets in a text": b'{"path": "' + b"[" * 4_000_000 + b'"}',
    "escapes": b'{"path": "' + b'\\"[' * 1_300_000 + b'"}',
    "backslashes": b"[" * 500 + b"\\" * (4 * MIB - 1000),
    "a long number": b'{"path": ' + b"9" * 4_000_000 + b"}",
    "small texts": b"[[" * 200 + b'"",' * 1_300_000,
}


def measure_decode_s() -> float:
    """Measure the processor time of decoding the body with the most values that is accepted."""
    began = time.thread_time()
    msgspec.json.decode(BODIES["as many values as there may be"])
    return time.thread_time() - began


@pytest.fixture
async def api(world: ApiWorld) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app=create_app(world.services()), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        await client.get("/api/executions")
        yield client


@pytest.mark.parametrize("name", sorted(BODIES))
async def test_hostile_body_is_refused_and_does_not_hold_the_loop(
    api: httpx.AsyncClient, name: str
) -> None:
    body, headers = BODIES[name], {"Content-Type": "application/json"}
    before_s = measure_decode_s()
    async with watch_loop() as lag:
        answer = await api.post("/api/execute", content=body, headers=headers)
    # A machine that others use, too, is at times half as fast.
    decode_s = max(before_s, measure_decode_s())
    assert 400 <= answer.status_code < 500, answer.text
    assert lag.held_over(DECODINGS_MAX * decode_s) == []


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "has no body"),
        (b'{"path": ', "ends before its last bracket"),
        (b'{"path": "\\ud800"}', "half of a pair"),
    ],
)
async def test_a_body_that_is_not_there_or_ends_too_early_is_told_so(
    api: httpx.AsyncClient, body: bytes, word: str
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = await api.post("/api/execute", content=body, headers=headers)
    assert answer.status_code == HTTPStatus.BAD_REQUEST
    assert word in answer.text


@pytest.mark.parametrize(
    ("data", "is_deep"),
    [
        (b"[" * bodies.DEPTH_MAX + b"]" * bodies.DEPTH_MAX, False),
        (b"[" * (bodies.DEPTH_MAX + 1) + b"]" * (bodies.DEPTH_MAX + 1), True),
        (b'["' + b"[" * 100_000 + b'"]', False),
        (b'["' + b'\\"[' * 100_000 + b'"]', False),
        (b'["' + b"\\\\" * 100_001 + b'",' + b"[" * 300 + b"]" * 300 + b"]", True),
        (b'["' + b"a" * 65_534 + b'",' + b"[" * 300, True),
        (b'["' + b"a" * 65_532 + b'\\"' + b"[" * 300 + b'"]', False),
        (b"[],{}" * 200_000, False),
    ],
)
async def test_depth_is_judged_outside_of_texts(data: bytes, *, is_deep: bool) -> None:
    assert await bodies.is_too_deep(data) is is_deep


@pytest.mark.parametrize(
    "path",
    [
        "/api/executions/a%00b",
        "/api/executions?path=a%00b",
        "/api/catalog/a%00b",
        "/api/schedules/a%00b",
        f"/api/catalog/demo?version={2**70}",
        f"/api/executions/7/stream?after={2**70}",
        f"/api/executions/7/events?after={2**70}",
        f"/api/executions?limit={2**70}",
    ],
)
async def test_nul_and_numbers_over_64_bits_are_refused(api: httpx.AsyncClient, path: str) -> None:
    answer = await api.get(path)
    assert answer.status_code in {HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_FOUND}, answer.text


@pytest.mark.parametrize(
    ("limits", "who"),
    [
        (FollowerLimits(client=1), "this client's address follows 1 executions"),
        (FollowerLimits(execution=1), "1 clients follow execution 7 already"),
    ],
)
async def test_share_of_followers_is_refused_with_the_way_out(
    world: ApiWorld, limits: FollowerLimits, who: str
) -> None:
    await world.append(ExecutionId("7"), beginning())
    await world.project(ExecutionId("7"))
    seats = FollowerLimiter()
    app = create_app(world.services(follower_limiter=seats, follower_limits=limits))
    transport = httpx.ASGITransport(app=app, client=("10.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
        with seats.hold_seat("10.0.0.1", "7"):
            answer = await client.get("/api/executions/7/stream")
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_streams")
    assert who in answer.json()["detail"]
    assert "noetl events ID" in answer.json()["hint"]
    assert seats.has_client_seat("10.0.0.1", limits)
