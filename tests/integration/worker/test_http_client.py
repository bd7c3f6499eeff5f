"""The http tool's client: how it keeps connections, waits, gives up, and how fast it reads."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from tests.support.polling import eventually
from tests.support.scripted import Script, hangs, resets, says
from yarl import URL

from noetl_worker.tools.calls.call import Timeout
from noetl_worker.tools.http import http_request, transfers
from noetl_worker.tools.http.client import ClientRules, HttpClient
from noetl_worker.tools.http.exchange import AddressRefused, BodyTooLarge, HttpResponse
from noetl_worker.tools.http.http_request import HttpRequest, build_address
from noetl_worker.tools.http.transfers import EpollWatcher, LoopWatcher

LONG_BYTES = 64 * 1024 * 1024
PIECE = b"x" * 65_536


@pytest.fixture(autouse=True, params=[EpollWatcher, LoopWatcher])
def _sockets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds for both ways to watch sockets."""
    monkeypatch.setattr(transfers, "build_watcher", request.param)


@asynccontextmanager
async def client(*, connections_max: int = 8, allows: bool = True) -> AsyncIterator[HttpClient]:
    opened = HttpClient(ClientRules(check=lambda *_: allows, connections_max=connections_max))
    try:
        yield opened
    finally:
        opened.close()


def request(url: str, *, method: str = "GET", **headers: str) -> HttpRequest:
    return HttpRequest(method=method, address=build_address(URL(url)), headers=headers, body=None)


async def fetch(
    opened: HttpClient,
    http_request: HttpRequest,
    *,
    patience: Timeout | None = None,
    bytes_max: int = 1 << 20,
) -> HttpResponse:
    patience = patience or Timeout(total=30)
    return await opened.fetch_response(
        http_request, time_limits=patience, is_verified=True, bytes_max=bytes_max
    )


@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_a_request_is_never_repeated_behind_the_policys_back(
    server: Script, method: str
) -> None:
    """A kept connection that breaks before an answer would make libcurl ask again."""
    server.answers(says({}), resets())
    async with client() as opened:
        assert (await fetch(opened, request(server.url))).status == 200
        with pytest.raises(ConnectionResetError):
            await fetch(opened, request(server.url, method=method))
        assert len(server.seen) == 2


async def test_a_long_answer_waits_for_its_reader(server: Script) -> None:
    sent = 0

    async def pour(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        while sent < LONG_BYTES:
            await answer.write(PIECE)
            sent += len(PIECE)
        return answer

    server.answers(pour)
    async with (
        client() as opened,
        opened.stream_response(
            request(server.url), time_limits=Timeout(total=60), is_verified=True
        ) as (
            response,
            pieces,
        ),
    ):
        assert response.status == 200
        received = len(await anext(pieces))
        # What nobody reads fills the buffers of both sides, which are far smaller than the answer.
        seen: list[int] = []

        async def stands_still() -> bool:
            seen.append(sent)
            return seen[-2:] == [sent, sent]

        await eventually(stands_still)
        assert sent < LONG_BYTES
        received += sum([len(piece) async for piece in pieces])
    assert received == LONG_BYTES


async def test_a_request_that_nobody_waits_for_is_given_up(server: Script) -> None:
    server.answers(hangs(), says({"a": 1}))
    async with client() as opened:
        waiting = asyncio.ensure_future(fetch(opened, request(server.url)))
        await server.arrived.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await fetch(opened, request(server.url))).body == b'{"a": 1}'


async def test_closing_ends_what_is_under_way(server: Script) -> None:
    server.answers(hangs())
    async with client() as opened:
        waiting = asyncio.ensure_future(fetch(opened, request(server.url)))
        await server.arrived.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_silence_in_an_answer_ends_it(server: Script) -> None:
    async def begin(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "10"})
        await answer.prepare(request)
        await answer.write(b"half")
        await asyncio.Event().wait()
        raise AssertionError

    server.answers(begin)
    async with client() as opened:
        with pytest.raises(TimeoutError, match="nothing came"):
            await fetch(opened, request(server.url), patience=Timeout(total=60, read=0.2))


async def test_an_answer_cut_short_is_an_error(server: Script) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "10"})
        await answer.prepare(request)
        await answer.write(b"half")
        assert request.transport is not None
        request.transport.close()
        return answer

    server.answers(cut)
    async with client() as opened:
        with pytest.raises(OSError, match=r"."):
            await fetch(opened, request(server.url))
        with pytest.raises(OSError, match=r"."):
            async with opened.stream_response(
                request(server.url), time_limits=Timeout(total=30), is_verified=True
            ) as (_, pieces):
                _ = [piece async for piece in pieces]


async def test_no_more_connections_are_opened_than_allowed(server: Script) -> None:
    inside = most = 0

    async def count(_request: web.Request) -> web.StreamResponse:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        return web.json_response({})

    server.answers(count)
    async with client(connections_max=3) as opened:
        found = await asyncio.gather(*(fetch(opened, request(server.url)) for _ in range(60)))
    assert {item.status for item in found} == {200}
    assert most <= 3


@pytest.mark.parametrize(
    "asked",
    [
        request("http://127.0.0.1:9/", **{"X A": "b"}),
        request("http://127.0.0.1:9/", **{"X-A": "b\r\nX-B: c"}),
        request("http://127.0.0.1:9/", method="GET / HTTP/1.1\r\nX:"),
    ],
)
async def test_nothing_slips_into_the_head_of_a_request(asked: HttpRequest) -> None:
    async with client() as opened:
        with pytest.raises(ValueError, match=r"."):
            await fetch(opened, asked)


async def test_an_empty_header_is_sent_and_a_method_of_ones_own(server: Script) -> None:
    server.answers(says({}))
    async with client() as opened:
        await fetch(opened, request(server.url, method="PURGE", **{"X-Empty": ""}))
        await fetch(opened, request(server.url, method="HEAD"))
        await fetch(opened, request(server.url, method="POST"))
        await fetch(opened, request(server.url))
    purge, head, post, get = server.seen
    assert (purge.method, purge.headers["X-Empty"]) == ("PURGE", "")
    assert (head.method, post.method, get.method) == ("HEAD", "POST", "GET")
    assert post.headers["Content-Length"] == "0"
    for seen in (purge, head, post, get):
        assert "Content-Type" not in seen.headers
        assert seen.headers["User-Agent"] == "noetl"


async def test_what_is_refused_or_too_long_has_its_own_error(server: Script) -> None:
    server.answers(says("x" * 1000))
    async with client(allows=False) as opened:
        with pytest.raises(AddressRefused):
            await fetch(opened, request(server.url))
    assert not server.seen
    async with client() as opened:
        with pytest.raises(BodyTooLarge):
            await fetch(opened, request(server.url), bytes_max=999)
        assert len((await fetch(opened, request(server.url))).body) == 1002


async def test_a_name_and_password_in_an_address_become_a_header(server: Script) -> None:
    built = http_request.build_request(
        {"url": server.url.replace("//", "//me:pass%20word@") + "/x#part"}, idempotency_key="k"
    )
    assert built.address.url == server.url + "/x"
    server.answers(says({}))
    async with client() as opened:
        await fetch(opened, built)
    assert server.seen[0].headers["Authorization"] == "Basic bWU6cGFzcyB3b3Jk"
