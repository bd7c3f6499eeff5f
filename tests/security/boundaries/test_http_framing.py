"""One task's request or answer cannot decide what the next task on the same connection is told."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.attempting import site_of
from tests.support.playbooks import judged
from tests.support.working import Bench, bench

from noetl_contracts.errors import ErrorObject
from noetl_worker.tools.calls.call import Call, Outcome, Timeout

RIGHT = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n[true]\n"
WRONG = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n[false]\n"
HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = b"2\r\n[]\r\n0\r\n\r\n"
REFUSED_HEADERS = [
    *("Content-Length", "Transfer-Encoding", "Connection", "Upgrade", "Host", "TE", "Trailer"),
    *("Keep-Alive", "Proxy-Connection", "Proxy-Authorization", "HTTP2-Settings"),
    *("content-length", "HOST", "tRANSFER-eNCODING", ":authority", ":path", "a b", "a:b", ""),
    *("X\r\nContent-Length", "X\n", "X\r", "Content-Length ", " Host", "X\x00", "Ä"),
]
REFUSED_VALUES = ["a\r\nContent-Length: 0", "a\nb", "a\rb", "a\x00b", "a\x1b[31m", "a\x0bb", "\x7f"]


class RawServer:
    """Answers the first request of the first connection with bytes of the test's choice."""

    def __init__(self, first: bytes, later: bytes = b"") -> None:
        self._first, self._later = first, later
        self.requests: list[int] = []
        self.heads: list[bytes] = []
        self.is_first_read = asyncio.Event()
        self.is_all_sent = asyncio.Event()
        self.url = ""

    async def serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        number = len(self.requests)
        self.requests.append(0)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"(?i)\ncontent-length: *(\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                self.requests[number] += 1
                self.heads.append(head)
                is_first = number == 0 and self.requests[0] == 1
                writer.write(self._first if is_first else RIGHT)
                await writer.drain()
                if is_first and self._later:
                    await self._send_later(writer)
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            return
        finally:
            writer.close()

    async def _send_later(self, writer: asyncio.StreamWriter) -> None:
        await self.is_first_read.wait()
        writer.write(self._later)
        await writer.drain()
        self.is_all_sent.set()


@asynccontextmanager
async def raw_server(first: bytes = RIGHT, later: bytes = b"") -> AsyncIterator[RawServer]:
    server = RawServer(first, later)
    listener = await asyncio.start_server(server.serve_connection, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/"
    async with listener:
        yield server


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench() as opened:
        yield opened


async def send(worker: Bench, url: str, *, timeout_s: float = 3, **fields: Any) -> Outcome:
    site = site_of()
    return await worker.tools.run(
        Call(
            site=site,
            task="t",
            kind="http",
            attempt=1,
            visit=1,
            fields={"url": url, **fields},
            input={},
            auth=None,
            timeout=Timeout(total=timeout_s),
        )
    )


def error_of(outcome: Outcome) -> ErrorObject:
    assert outcome.error is not None, outcome.data
    return outcome.error


@pytest.mark.parametrize("name", REFUSED_HEADERS)
async def test_headers_of_the_connection_are_refused(worker: Bench, name: str) -> None:
    async with raw_server() as server:
        error = error_of(await send(worker, server.url, headers={name: "0"}))
        assert (error.kind, error.retryable) == ("validation", False)
        assert "header" in error.message
        assert server.heads == []


@pytest.mark.parametrize("value", REFUSED_VALUES)
async def test_values_that_would_begin_another_line_are_refused(worker: Bench, value: str) -> None:
    async with raw_server() as server:
        error = error_of(await send(worker, server.url, headers={"X-A": value}))
        assert error.kind == "validation"
        assert server.heads == []


async def test_a_second_request_cannot_hide_in_a_body(worker: Bench) -> None:
    """With a length of 0 the body was the next request, and its answer the next task's."""
    hidden = b"GET /hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    async with raw_server() as server:
        first = await send(
            worker, server.url, method="POST", body=hidden.decode(), headers={"Content-Length": "0"}
        )
        assert error_of(first).kind == "validation"
        assert (await send(worker, server.url)).data["body"] == [True]
        assert not any(b"/hidden" in head for head in server.heads)


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "connect", "GET /x HTTP/1.1\r\nA:", ""])
async def test_methods_that_turn_a_connection_into_something_else_are_refused(
    worker: Bench, method: str
) -> None:
    async with raw_server() as server:
        outcome = await send(worker, server.url, method=method)
        if method:
            assert error_of(outcome).kind == "validation"
        assert not any(not head.startswith(b"GET / HTTP/1.1") for head in server.heads)


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(HEAD + b"Content-Length: 2\r\n\r\n[]" + WRONG, id="bytes behind the body"),
        pytest.param(
            HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
            id="both lengths",
        ),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n" + CHUNKED,
            id="both lengths, the other way",
        ),
        pytest.param(
            HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
            id="chunked twice",
        ),
        pytest.param(
            b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n"
            + CHUNKED,
            id="chunked before HTTP/1.1",
        ),
        pytest.param(HEAD + b"Content-Length : 2\r\n\r\n[]", id="space before the colon"),
        pytest.param(
            HEAD + b"Content-Length: 2\r\nContent-Length: 47\r\n\r\n[]" + WRONG, id="two lengths"
        ),
        pytest.param(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + WRONG, id="unasked upgrade"
        ),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\nContent-Length: 2\r\n\r\n" + RIGHT,
            id="interim answer with a length",
        ),
        pytest.param(
            b"HTTP/1.1 103 Early Hints\r\n\r\n" * 500 + RIGHT, id="endless interim answers"
        ),
        pytest.param(b"\r\n" + RIGHT, id="empty line first"),
        pytest.param(b"HTTP/1.1 20000 OK\r\nContent-Length: 2\r\n\r\n[]", id="long status"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n" + WRONG, id="no content, with some"),
        pytest.param(b"HTTP/1.1 304 Not Modified\r\n\r\n" + WRONG, id="not modified, with a body"),
    ],
)
async def test_an_answer_that_does_not_fit_ends_its_connection(worker: Bench, first: bytes) -> None:
    async with raw_server(first) as server:
        await send(worker, server.url, timeout_s=1)
        again = await send(worker, server.url)
        assert again.data["body"] == [True]
        assert server.requests == [1, 1]


@pytest.mark.parametrize(
    "first",
    [
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\nContent-Length: 2\r\n\r\n" + RIGHT,
    ],
)
async def test_an_answer_that_does_not_fit_is_an_error_that_says_why(
    worker: Bench, first: bytes
) -> None:
    async with raw_server(first) as server:
        error = error_of(await send(worker, server.url))
        assert error.kind == "connection"
        assert "does not fit the request" in error.message


@pytest.mark.parametrize(
    ("method", "first"),
    [
        ("GET", HEAD + b"Content-Length: 2\r\n\r\n[]"),
        ("GET", HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\n\r\n"),
        ("HEAD", HEAD + b"Content-Length: 47\r\n\r\n"),
        ("POST", HEAD + b"Content-Length: 2\r\n\r\n[]"),
    ],
)
async def test_what_comes_while_nobody_asked_answers_nobody(
    worker: Bench, method: str, first: bytes
) -> None:
    async with raw_server(first, WRONG) as server:
        await send(worker, server.url, method=method)
        server.is_first_read.set()
        await server.is_all_sent.wait()
        assert (await send(worker, server.url)).data["body"] == [True]
        assert server.requests == [1, 1]


async def test_an_honest_connection_is_kept(worker: Bench) -> None:
    async with raw_server() as server:
        for _ in range(3):
            assert (await send(worker, server.url)).data["body"] == [True]
        assert server.requests == [3]


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS"])
async def test_a_body_that_a_server_may_not_expect_has_a_connection_of_its_own(
    worker: Bench, method: str
) -> None:
    async with raw_server() as server:
        await send(worker, server.url, method=method, body="GET /hidden HTTP/1.1\r\n\r\n")
        assert (await send(worker, server.url)).data["body"] == [True]
        assert server.requests == [1, 1]


async def test_a_redirect_cannot_bring_the_answer_of_where_it_leads(worker: Bench) -> None:
    away = b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n" + WRONG
    async with raw_server(away) as server:
        found = await send(worker, server.url)
        assert found.data["body"] == [True]
        assert server.requests == [1, 1]


@pytest.mark.parametrize("name", ["Content-Length", "host", "Proxy-Authorization", ":path", "a b"])
@pytest.mark.parametrize(
    "place",
    [
        "tool: {{kind: http, url: 'https://a.example', headers: {{{name!r}: x}}}}",
        (
            "tool: {{kind: python, script: {{source: {{type: http, endpoint: 'https://a.example',"
            " headers: {{{name!r}: x}}}}}}}}"
        ),
    ],
)
def test_lint_refuses_headers_of_the_connection(place: str, name: str) -> None:
    problems = judged("- {step: a, " + place.format(name=name) + "}").problems
    assert [(problem.code, problem.is_error) for problem in problems] == [("E104", True)]
    assert name in problems[0].message


def test_lint_refuses_line_breaks_in_headers_and_leaves_templates_for_the_run() -> None:
    head = "- {step: a, tool: {kind: http, url: 'https://a.example', headers: "
    assert judged(head + '{X-A: "a\\r\\nHost: b"}}}').playbook is None
    assert judged(head + '{X-A: "{{ execution_id }}", Accept: "*/*"}}}').problems == ()
    keychain = "keychain: [{name: k, kind: http, url: 'https://a.example', map: {a: b},"
    root = keychain + " headers: {TE: trailers}}]\n"
    assert judged("- {step: a, tool: {kind: noop}}", root=root).playbook is None
