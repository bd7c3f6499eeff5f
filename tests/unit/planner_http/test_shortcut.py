"""What is asked in the usual way is answered as the framework would answer it."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from litestar.types import HTTPReceiveMessage, Receive, Scope, Send
from tests.support.api import PLAYBOOK

from noetl_planner.api.executions import fast_path, start_requests
from noetl_planner.api.http import bodies
from noetl_planner.api.http.problems import ApiError

Api = AsyncTestClient[Litestar]
PLAIN = {"Content-Type": "application/json"}
# The shortcut leaves what says more of its body than that it is JSON to the framework.
FRAMED = {"Content-Type": "application/json; charset=utf-8"}
HELLO = {"path": "demo/hello"}
DEEP: Any = json.loads("[" * (bodies.DEPTH_MAX + 1) + "]" * (bodies.DEPTH_MAX + 1))


@pytest.fixture
async def known(api: Api) -> Api:
    answer = await api.post(
        "/api/catalog/register", content=PLAYBOOK, headers={"Content-Type": "text/yaml"}
    )
    assert answer.status_code == 200, answer.text
    return api


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The status of each answer that was begun, whichever way it went."""
    statuses: list[int] = []
    write = fast_path._send_answer

    async def watched(answer: start_requests.StartAnswer, send: Send) -> None:
        statuses.append(answer.status)
        await write(answer, send)

    monkeypatch.setattr(fast_path, "_send_answer", watched)
    return statuses


def said(answer: httpx.Response) -> tuple[int, Mapping[str, str], Any]:
    """What an answer says, but for the identity of what has begun."""
    document = answer.json()
    document.pop("execution_id", None)
    headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
    return answer.status_code, headers, document


@pytest.mark.parametrize(
    ("asked", "headers"),
    [
        (HELLO, {}),
        ({**HELLO, "workload": {"who": "moon", "n": 1.0, "big": 2**70}}, {}),
        ({**HELLO, "version": 1}, {}),
        ({**HELLO, "version": "1"}, {}),
        ({**HELLO, "version": "latest", "priority": None}, {}),
        ({"path": "/demo/hello/", "args": {}}, {}),
        (HELLO, {"Prefer": "respond-async"}),
        (HELLO, {"Prefer": "wait=1"}),
    ],
)
async def test_both_ways_give_the_same_answer(
    known: Api, taken: list[int], asked: dict[str, Any], headers: dict[str, str]
) -> None:
    data = json.dumps(asked).encode()
    short = await known.post("/api/execute", content=data, headers={**PLAIN, **headers})
    assert taken == [short.status_code] == [202]
    framed = await known.post("/api/executions", content=data, headers={**FRAMED, **headers})
    assert taken == [202]
    assert said(short) == said(framed)


@pytest.mark.parametrize(
    ("data", "headers", "status"),
    [
        (b'{"path": "demo/nothing"}', {}, 404),
        (b'{"path": "demo/hello", "version": "x"}', {}, 400),
        (b'{"path": "demo/hello", "version": 7}', {}, 404),
        (b'{"path": "demo/hello", "workload": {}, "args": {}}', {}, 400),
        (b'{"path": "demo/hello", "pool": "nobody\'s"}', {}, 400),
        (b'{"path": "demo/hello", "unknown": 1}', {}, 400),
        (b'{"path": ""}', {}, 400),
        (b'{"path": "demo/hello"', {}, 400),
        (b'{"path": "\xff"}', {}, 400),
        (b"", {}, 400),
        (b"[]", {}, 400),
        (json.dumps({**HELLO, "workload": {"deep": DEEP}}).encode(), {}, 422),
        (json.dumps(HELLO).encode(), {"Idempotency-Key": "k" * 201}, 400),
        (json.dumps(HELLO).encode(), {"Idempotency-Key": ""}, 400),
        (json.dumps(HELLO).encode(), {"Prefer": "x" * 1001}, 400),
        (json.dumps(HELLO).encode(), {"Sec-Fetch-Site": "cross-site"}, 403),
        (json.dumps({**HELLO, "idempotency_key": "a"}).encode(), {"Idempotency-Key": "b"}, 400),
    ],
)
async def test_both_ways_refuse_alike(
    known: Api, taken: list[int], data: bytes, headers: dict[str, str], status: int
) -> None:
    short = await known.post("/api/execute", content=data, headers={**PLAIN, **headers})
    framed = await known.post("/api/execute", content=data, headers={**FRAMED, **headers})
    assert short.status_code == status, short.text
    assert said(short) == said(framed)
    assert taken == []


async def test_a_key_counts_whichever_way_it_comes(known: Api, taken: list[int]) -> None:
    key = {"Idempotency-Key": "nightly"}
    answers = [
        await known.post("/api/execute", json=HELLO, headers={**kind, **key})
        for kind in (PLAIN, FRAMED, PLAIN)
    ]
    assert [answer.json()["deduplicated"] for answer in answers] == [False, True, True]
    assert len({answer.json()["execution_id"] for answer in answers}) == 1
    assert taken == [202, 202]


async def test_the_methods_of_its_address_are_told_as_everywhere(known: Api) -> None:
    answer = await known.options("/api/execute", headers=PLAIN)
    assert (answer.status_code, answer.headers["Allow"]) == (204, "OPTIONS, POST")
    assert (await known.get("/api/execute", headers=PLAIN)).status_code == 405


@pytest.mark.parametrize(
    "first",
    [
        {"type": "http.request", "body": b'{"path": "demo/hello"}'},
        {"type": "http.request", "body": b'{"path": "demo/hello"}', "more_body": False},
    ],
)
async def test_a_server_need_not_say_that_nothing_follows(first: Any) -> None:
    body = await fast_path._decode_body(first)
    assert body is not None
    assert body.path == "demo/hello"


async def test_a_server_need_not_name_an_empty_body() -> None:
    first: Any = {"type": "http.request"}
    assert await fast_path._decode_body(first) is None


async def test_a_body_in_parts_is_the_frameworks_from_its_first_byte() -> None:
    parts: list[HTTPReceiveMessage] = [
        {"type": "http.request", "body": b'{"path": ', "more_body": True},
        {"type": "http.request", "body": b'"demo"}', "more_body": False},
    ]
    coming, heard = list(parts), list[object]()

    async def framework(_: Scope, receive: Receive, __: Send) -> None:
        heard.extend([await receive(), await receive()])

    async def receive() -> HTTPReceiveMessage:
        return coming.pop(0)

    async def send(_: object) -> None:
        raise AssertionError("nothing is to be answered here")

    scope: Any = {"method": "POST", "headers": [(b"content-type", b"application/json")]}
    await fast_path.FastPath(framework)(scope, receive, send)
    assert heard == parts


async def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "BODY_S", 0.01)

    async def never() -> HTTPReceiveMessage:
        await asyncio.Event().wait()
        raise AssertionError("it never comes")

    with pytest.raises(ApiError, match="did not arrive"):
        await bodies.receive_first_part(never)
