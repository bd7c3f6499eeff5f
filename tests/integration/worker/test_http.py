"""The http tool against a real server."""

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.support.scripted import Script, hangs, resets, says, script, sends
from tests.support.working import EXECUTION, ORGANIZATION, TENANT, Bench, bench

from noetl_worker.domain.sites import Site
from noetl_worker.tools.call import Call, Outcome, Timeout


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench(http_response_bytes_max=1024 * 1024) as found:
        yield found


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script() as found:
        yield found


def call_of(
    fields: dict[str, Any], *, auth: Any = None, timeout_s: float = 5, visit: int = 1
) -> Call:
    site = Site(
        execution_id=EXECUTION,
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        step="s",
        unit="step",
    )
    return Call(
        site=site,
        task="t",
        kind="http",
        attempt=1,
        visit=visit,
        fields=fields,
        input={},
        auth=auth,
        timeout=Timeout(total=timeout_s),
    )


async def send(worker: Bench, fields: dict[str, Any], **about: Any) -> Outcome:
    return await worker.tools.run(call_of(fields, **about))


def kind_of(outcome: Outcome) -> str | None:
    return None if outcome.error is None else outcome.error.kind


async def test_json_is_parsed_and_the_response_described(worker: Bench, server: Script) -> None:
    server.answers(says({"a": 1}, headers={"X-A": "b"}))
    found = await send(worker, {"url": server.url + "/x?y=1", "params": {"z": "a b"}})
    assert found.data["status_code"] == 200
    assert found.data["body"] == {"a": 1}
    assert found.data["headers"]["X-A"] == "b"
    assert found.data["url"] == server.url + "/x?y=1&z=a+b"
    assert server.seen[0].query == {"y": "1", "z": "a b"}


@pytest.mark.parametrize(
    ("fields", "body", "media_type"),
    [
        ({"json": {"a": [1]}}, b'{"a":[1]}', "application/json"),
        ({"body": {"a": 1}}, b'{"a":1}', "application/json"),
        ({"body": "plain"}, b"plain", "text/plain; charset=utf-8"),
        ({"form": {"a": 1, "b": True}}, b"a=1&b=true", "application/x-www-form-urlencoded"),
        ({"data": {"json": {"a": 1}}}, b'{"a":1}', "application/json"),
        ({"data": {"other": 1}}, b'{"other":1}', "application/json"),
        (
            {
                "body": {"a": 1},
                "headers": {"content-type": "application/x-www-form-urlencoded"},
            },
            b"a=1",
            "application/x-www-form-urlencoded",
        ),
    ],
)
async def test_bodies_are_encoded_as_they_are_given(
    worker: Bench, server: Script, fields: dict[str, Any], body: bytes, media_type: str
) -> None:
    server.answers(says({}))
    await send(worker, {"url": server.url, "method": "post", **fields})
    (seen,) = server.seen
    assert (seen.method, seen.body) == ("POST", body)
    types = [item for name, item in seen.headers.items() if name.lower() == "content-type"]
    assert types == [media_type]


@pytest.mark.parametrize(
    ("response_type", "answer", "expected"),
    [
        ("auto", sends(b'{"a":1}'), {"a": 1}),
        ("auto", sends(b"hello", headers={"Content-Type": "text/plain"}), "hello"),
        ("auto", sends(b"\x00\xff", headers={"Content-Type": "image/png"}), "AP8="),
        ("text", sends(b'{"a":1}'), '{"a":1}'),
        ("bytes", sends(b"abc"), "YWJj"),
        ("ndjson", sends(b'{"a":1}\n\n{"a":2}\n'), [{"a": 1}, {"a": 2}]),
    ],
)
async def test_the_body_is_read_as_the_response_type_says(
    worker: Bench, server: Script, response_type: str, answer: Any, expected: Any
) -> None:
    server.answers(answer)
    found = await send(worker, {"url": server.url, "response_type": response_type})
    assert found.data["body"] == expected


async def test_a_body_that_is_not_json_is_a_parse_error(worker: Bench, server: Script) -> None:
    server.answers(sends(b"<html>", headers={"Content-Type": "text/html"}))
    found = await send(worker, {"url": server.url, "response_type": "json"})
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("parse", False)


async def test_an_error_status_keeps_its_response(worker: Bench, server: Script) -> None:
    server.answers(says({"detail": "no"}, status=422))
    found = await send(worker, {"url": server.url})
    assert kind_of(found) == "client_error"
    assert found.data["body"] == {"detail": "no"}


async def test_a_server_that_never_answers_is_left_after_the_timeout(
    worker: Bench, server: Script
) -> None:
    server.answers(hangs())
    assert kind_of(await send(worker, {"url": server.url}, timeout_s=0.2)) == "timeout"


async def test_a_broken_connection_is_retryable(worker: Bench, server: Script) -> None:
    server.answers(resets())
    found = await send(worker, {"url": server.url, "method": "POST"})
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("connection", True)
    assert kind_of(await send(worker, {"url": "http://127.0.0.1:9/"})) == "connection"


async def test_the_key_of_a_request_changes_with_the_visit_alone(
    worker: Bench, server: Script
) -> None:
    server.answers(says({}))
    for visit in (1, 1, 2):
        await send(worker, {"url": server.url}, visit=visit)
    first, again, other = (seen.headers["Idempotency-Key"] for seen in server.seen)
    assert first == again != other


async def test_retry_after_holds_back_every_request_to_the_host(
    worker: Bench, server: Script
) -> None:
    server.answers(says(status=429, headers={"Retry-After": "1"}), says({}))
    limited = await send(worker, {"url": server.url})
    assert limited.error is not None
    assert (limited.error.kind, limited.error.retry_after) == ("rate_limit", 1.0)
    loop = asyncio.get_running_loop()
    started = loop.time()
    found = await asyncio.gather(*(send(worker, {"url": server.url}) for _ in range(3)))
    assert [kind_of(one) for one in found] == [None, None, None]
    assert loop.time() - started > 0.9


async def test_redirects_are_followed_only_where_they_may_lead(
    worker: Bench, server: Script
) -> None:
    server.answers(
        sends(b"", status=302, headers={"Location": "/next"}),
        says({"at": "next"}),
        sends(b"", status=302, headers={"Location": "http://169.254.169.254/latest"}),
        sends(b"", status=302, headers={"Location": "/next"}),
    )
    assert (await send(worker, {"url": server.url})).data["body"] == {"at": "next"}
    denied = await send(worker, {"url": server.url})
    assert kind_of(denied) == "config"
    unfollowed = await send(worker, {"url": server.url, "follow_redirects": False})
    assert unfollowed.data["status_code"] == 302


@pytest.mark.parametrize(
    "url",
    [
        *("http://169.254.169.254/", "http://10.0.0.1/", "http://[::1]/", "http://0x7f000002/"),
        *("http://127.2/", "http://user@192.168.1.1/", "http://[::ffff:10.0.0.1]/"),
    ],
)
async def test_addresses_inside_are_not_reached(worker: Bench, url: str) -> None:
    found = await send(worker, {"url": url}, timeout_s=2)
    assert found.error is not None
    assert found.error.kind == "config"
    assert "NOETL_WORKER_HTTP_ALLOW" in found.error.message


@pytest.mark.parametrize("url", ["file:///etc/passwd", "gopher://x/", "nonsense", "", None])
async def test_other_schemes_are_refused(worker: Bench, url: Any) -> None:
    assert kind_of(await send(worker, {"url": url})) == "validation"


@pytest.mark.parametrize("is_packed", [False, True])
async def test_a_body_beyond_the_cap_is_refused(
    worker: Bench, server: Script, *, is_packed: bool
) -> None:
    body = b"x" * (1024 * 1024 + 1)
    headers = {"Content-Encoding": "deflate"} if is_packed else {}
    server.answers(sends(zlib.compress(body) if is_packed else body, headers=headers))
    assert kind_of(await send(worker, {"url": server.url})) == "payload_too_large"


@pytest.mark.parametrize(
    ("kind", "fields", "header", "expected"),
    [
        ("bearer", {"token": "tok-123456"}, "Authorization", "Bearer tok-123456"),
        ("basic", {"username": "u", "password": "p"}, "Authorization", "Basic dTpw"),
        ("api_key", {"header": "X-Key", "value": "v-123456"}, "X-Key", "v-123456"),
    ],
)
async def test_credentials_become_headers(
    worker: Bench, server: Script, kind: str, fields: dict[str, Any], header: str, expected: str
) -> None:
    server.answers(says({}))
    await worker.put_credential("shop", fields, kind=kind)
    await send(worker, {"url": server.url}, auth="shop")
    assert server.seen[0].headers[header] == expected


async def test_a_credential_is_not_sent_to_another_host(worker: Bench, server: Script) -> None:
    await worker.put_credential("shop", {"token": "tok-123456"}, kind="bearer")
    async with script() as other:
        other.answers(says({}))
        server.answers(sends(b"", status=307, headers={"Location": other.url}))
        await send(worker, {"url": server.url}, auth="shop")
        assert "Authorization" not in other.seen[0].headers


async def test_an_unknown_credential_says_how_to_register_it(worker: Bench) -> None:
    found = await send(worker, {"url": "http://127.0.0.1:9/"}, auth="nope")
    assert found.error is not None
    assert found.error.message == (
        "credential 'nope' is not registered: register it with `noetl credential put nope`"
    )


async def test_a_credential_of_another_type_is_refused(worker: Bench) -> None:
    await worker.put_credential("db", {"dsn": "postgres://x"}, kind="postgres")
    assert kind_of(await send(worker, {"url": "http://127.0.0.1:9/"}, auth="db")) == "config"
