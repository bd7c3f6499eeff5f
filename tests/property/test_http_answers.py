"""Whatever a server sends is the outcome of that one request: a result, or an error with a kind."""

import asyncio
import encodings
import pkgutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.calls import call_of
from tests.support.working import Bench, bench

from noetl_contracts import codec
from noetl_worker.tools.calls.call import Outcome

KINDS = {
    *("auth", "client_error", "config", "connection", "not_found", "parse", "payload_too_large"),
    *("rate_limit", "server_error", "timeout", "validation"),
}
CHARSETS = (
    *sorted(module.name for module in pkgutil.iter_modules(encodings.__path__)),
    *("idna", "undefined", "utf-8\x00", "rot13", "no-such", "x" * 5000, "'utf-8", "\xe9", ""),
)
OFFSETS = st.one_of(
    st.sampled_from(("GMT", "+0000", "-2359", "+9999999999999", "-9999999999", "UTC", "", "EST")),
    st.integers(-(10**30), 10**30).map(lambda n: f"{n:+d}"),
)
NUMBERS = st.one_of(st.integers(-1, 10**30), st.sampled_from((0, 1, 29, 31, 32, 1969, 9999, 10000)))
MONTHS = st.sampled_from(("Jan", "Feb", "Dec", "Foo", "13", ""))
DATES = st.builds(
    lambda day, month, year, h, m, s, zone: f"Mon, {day} {month} {year} {h}:{m}:{s} {zone}",
    *(NUMBERS, MONTHS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, OFFSETS),
)
LOCATIONS = st.one_of(
    st.sampled_from(
        (
            *(
                "http://[::1",
                "http://h:99999999999/",
                "//",
                "///",
                "http://",
                "http:///a",
                "?",
                "#",
            ),
            *("ftp://h/", "http://127.0.0.1:1/%zz", "http://\xe9.example/", "http://a..b/", ".."),
            *("http://u:p@127.0.0.1:1/", "http://%41:%zz@127.0.0.1:1/", "http://xn--\xe9/", "\\"),
            *(
                "http://" + "a" * 300 + "/",
                "http://127.0.0.1:1/\udcff",
                "javascript:1",
                "http://[v1.a]/",
            ),
            *(
                "http://127.0.0.1:/",
                "http://127.0.0.1:-1/",
                "http://\u2100/",
                "http://1.2.3.4.5.6/",
            ),
        )
    ),
    st.text(max_size=20).map(lambda text: f"http://127.0.0.1:1/{text}"),
    st.text(max_size=20).map(lambda text: f"http://{text}/"),
    st.text(max_size=20),
)
FREE = st.text(max_size=40)
VALUES = {
    "Content-Type": st.one_of(
        FREE,
        st.builds(
            lambda kind, charset: f"{kind}; charset={charset}",
            st.sampled_from(("text/plain", "application/json", "image/png", "", "text/", "a+xml")),
            st.one_of(st.sampled_from(CHARSETS), FREE),
        ),
    ),
    "Retry-After": st.one_of(FREE, DATES, NUMBERS.map(str)),
    "Location": LOCATIONS,
    "Content-Encoding": st.one_of(
        FREE, st.sampled_from(("gzip", "deflate", "x-gzip", "br", "identity", "gzip, gzip"))
    ),
    "Content-Length": st.one_of(FREE, NUMBERS.map(str)),
    "Transfer-Encoding": st.one_of(FREE, st.sampled_from(("chunked", "gzip, chunked", "identity"))),
    "Set-Cookie": FREE,
    "Connection": st.sampled_from(("close", "keep-alive", "upgrade")),
    "WWW-Authenticate": FREE,
}
BODIES = st.one_of(
    st.binary(max_size=60),
    st.sampled_from(
        (
            *(
                b"",
                b"ok",
                b'{"a": 1}',
                b"[" * 5000,
                b"1e999",
                b"9" * 5000,
                b'"\\ud800"',
                b"\xff\xfe",
            ),
            *(b"xn--\xff\\x\n", b"\xef\xbb\xbf{}", b"5\r\nhello\r\n0\r\n\r\n", b"\x1f\x8b\x08\x00"),
        )
    ),
)
TYPES = st.sampled_from((None, "auto", "json", "text", "bytes", "ndjson"))
STATUSES = st.sampled_from((200, 204, 206, 301, 303, 307, 308, 400, 401, 404, 408, 429, 503, 599))


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """A head of any headers, and a body."""
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), max_size=4))
    lines = [f"HTTP/1.1 {draw(STATUSES)} X".encode()]
    lines += [f"{name}: ".encode() + _bytes_of(draw(VALUES[name])) for name in names]
    lines += draw(st.lists(st.binary(max_size=30), max_size=1))
    return b"\r\n".join([*lines, b"", b""]) + draw(BODIES)


def _bytes_of(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


class Site:
    """A worker, and a server that says one thing to everybody and hangs up."""

    def __init__(self, worker: Bench) -> None:
        self._worker = worker
        self.url = ""
        self._answer = b""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self._answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def ask(self, answer: bytes, response_type: str | None) -> Outcome:
        """What a task comes to that is answered so."""
        self._answer = answer
        tool = self._worker.tools.http
        # What one answer said of a rest must not hold the next.
        tool._held_until.clear()
        fields: dict[str, Any] = {"url": self.url}
        if response_type is not None:
            fields["response_type"] = response_type
        return await tool.run(call_of("http", fields, timeout_s=2))


@asynccontextmanager
async def a_site() -> AsyncIterator[Site]:
    async with bench() as worker:
        site = Site(worker)
        server = await asyncio.start_server(site.answer, "127.0.0.1", 0)
        site.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        async with server:
            yield site


@pytest.fixture(scope="module")
def running() -> Iterator[tuple[asyncio.Runner, Site]]:
    with asyncio.Runner() as runner:
        opening = a_site()
        site = runner.run(opening.__aenter__())
        yield runner, site
        runner.run(opening.__aexit__(None, None, None))


@given(answer=answers(), response_type=TYPES)
def test_an_answer_is_an_outcome_of_its_request_alone(
    running: tuple[asyncio.Runner, Site], answer: bytes, response_type: str | None
) -> None:
    runner, site = running
    outcome = runner.run(site.ask(answer, response_type))
    if outcome.error is None:
        assert isinstance(outcome.data, dict)
        assert outcome.data["status_code"]
    else:
        assert outcome.error.kind in KINDS, outcome.error
        assert outcome.error.retry_after is None or 0 <= outcome.error.retry_after <= 86_400
    # It leaves the worker: a result that is no JSON would fail later, and take others with it.
    codec.decode_json(codec.encode_json(outcome))


@pytest.mark.parametrize("charset", CHARSETS)
@pytest.mark.parametrize("response_type", ["auto", "text"])
def test_a_character_set_is_what_python_reads_or_none(
    running: tuple[asyncio.Runner, Site], charset: str, response_type: str
) -> None:
    runner, site = running
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset={charset}\r\n\r\n"
    outcome = runner.run(site.ask(_bytes_of(head) + b"ok", response_type))
    assert outcome.error is None or outcome.error.kind in {"parse", "connection"}, outcome
