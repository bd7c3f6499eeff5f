"""The http tool against a real server."""

import asyncio
import hashlib
import zlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email import message_from_bytes
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web
from msgspec import structs
from tests.support.attempting import site_of
from tests.support.certificates import self_signed
from tests.support.scripted import Script, hangs, resets, says, script, sends
from tests.support.working import ORGANIZATION, TENANT, Bench, bench

from noetl_contracts import codec
from noetl_contracts.errors import summarize_error
from noetl_contracts.ids import OrganizationId
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_worker.tools.calls.call import Call, Outcome, Timeout


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench(http_response_bytes_max=1024 * 1024) as found:
        yield found


def call_of(
    fields: dict[str, Any], *, auth: Any = None, timeout_s: float = 5, visit: int = 1
) -> Call:
    site = site_of()
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
        ({"data": {"json": 1, "other": 1}}, b'{"json":1,"other":1}', "application/json"),
        ({"data": "plain"}, b"plain", "text/plain; charset=utf-8"),
        ({"data": [1]}, b"[1]", "application/json"),
        ({"data": {"form": {"a": 1}}}, b"a=1", "application/x-www-form-urlencoded"),
        ({"json": '{"a":1}'}, b'{"a":1}', "application/json"),
        ({"json": None, "body": "x"}, b"x", "text/plain; charset=utf-8"),
        ({"payload": {"a": None}}, b'{"a":null}', "application/json"),
        ({"body": "x", "headers": {"Content-Type": "text/csv"}}, b"x", "text/csv"),
        (
            {"form": {"a": ["x y", "&"], "n": None}},
            b"a=x+y&a=%26",
            "application/x-www-form-urlencoded",
        ),
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
        ("auto", sends(b"7", headers={"Content-Type": "text/plain"}), 7),
        ("auto", sends(b"\xe9", headers={"Content-Type": "text/plain; charset=latin-1"}), "é"),
        ("auto", sends(b"\xe9", headers={"Content-Type": "text/plain; charset=no-such"}), "\ufffd"),
        ("auto", sends(b"<a/>", headers={"Content-Type": "application/atom+xml"}), "<a/>"),
        ("auto", sends(b"%PDF", headers={"Content-Type": "application/pdf"}), "JVBERg=="),
        (
            "auto",
            sends(b'\xef\xbb\xbf{"a":1}', headers={"Content-Type": "application/json"}),
            {"a": 1},
        ),
        ("auto", sends(b"", status=204), ""),
        ("json", sends(b"[1]", headers={"Content-Type": "text/plain"}), [1]),
        ("text", sends(b"\xe9", headers={"Content-Type": "text/plain; charset=latin-1"}), "é"),
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
    assert [kind_of(item) for item in found] == [None, None, None]
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
    expected = "credential 'nope' is not registered: register it with `noetl credential put nope`"
    assert found.error.message.startswith(expected)
    assert "--credentials FILE" in found.error.message


async def test_a_credential_of_another_type_is_refused(worker: Bench) -> None:
    await worker.put_credential("db", {"dsn": "postgres://x"}, kind="postgres")
    assert kind_of(await send(worker, {"url": "http://127.0.0.1:9/"}, auth="db")) == "config"


async def test_params_follow_the_rules_of_the_language(worker: Bench, server: Script) -> None:
    server.answers(says({}))
    params = {"gone": None, "many": [1, None, "b c"], "yes": True, "no": False, "o": {"a": 1}}
    found = await send(worker, {"url": server.url + "/p?x=1#part", "params": params})
    assert found.data["url"] == (
        server.url + "/p?x=1&many=1&many=b+c&yes=true&no=false&o=%7B%22a%22%3A1%7D"
    )
    routed = await send(worker, {"url": server.url + "/p", "data": {"query": {"a": 1}}})
    assert routed.data["url"] == server.url + "/p?a=1"


async def test_headers_that_are_null_are_left_out(worker: Bench, server: Script) -> None:
    server.answers(says({}))
    await send(worker, {"url": server.url, "headers": {"X-A": None, "X-B": 5, "X-C": True}})
    headers = server.seen[0].headers
    assert "X-A" not in headers
    assert (headers["X-B"], headers["X-C"]) == ("5", "true")


@pytest.mark.parametrize("value", ["a\r\nX-Injected: 1", "a\nb", "a\0b"])
async def test_a_header_cannot_start_another_one(worker: Bench, server: Script, value: str) -> None:
    server.answers(says({}))
    found = await send(worker, {"url": server.url, "headers": {"X-A": value}})
    assert kind_of(found) == "validation"
    assert not server.seen


async def test_headers_that_come_twice_are_joined(worker: Bench, server: Script) -> None:
    async def twice(_request: web.Request) -> web.StreamResponse:
        answer = web.Response(text="x")
        answer.headers.add("X-A", "1")
        answer.headers.add("X-A", "2")
        return answer

    server.answers(twice)
    assert (await send(worker, {"url": server.url})).data["headers"]["X-A"] == "1, 2"


async def test_what_the_client_calls_text_is_text(worker: Bench, server: Script) -> None:
    server.answers(says({}))
    data = (await send(worker, {"url": server.url})).data
    assert {type(name) for name in data["headers"]} == {str}
    assert [codec.encode_text(name) for name in data["headers"]]


async def test_files_travel_as_multipart(worker: Bench, server: Script) -> None:
    result = PipelineResult(tasks={"t": TaskResult(kind="python", raw={"a": [1]})}, last="t")
    payload = await worker.payloads.put_payload(
        codec.encode_json(result),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type="application/json",
    )
    arrow = await worker.payloads.put_payload(
        b"ARROW1", tenant_id=TENANT, organization_id=ORGANIZATION, media_type="application/x-arrow"
    )
    refs = [
        {"kind": "result_ref", "sha256": item.sha256, "media_type": item.media_type}
        for item in (payload, arrow)
    ]
    server.answers(says({}))
    files = {"text": "hällo", "value": [1], "stored": refs[0], "table": refs[1], "gone": None}
    found = await send(
        worker, {"url": server.url, "method": "POST", "files": files, "form": {"k": True}}
    )
    assert found.error is None, found.error
    head = f"Content-Type: {server.seen[0].headers['Content-Type']}\r\n\r\n".encode()
    received = [
        (
            part.get_param("name", header="content-disposition"),
            part.get_filename(),
            part.get_content_type(),
            part.get_payload(decode=True),
        )
        for part in message_from_bytes(head + server.seen[0].body).get_payload()
    ]
    assert received == [
        ("k", None, "text/plain", b"true"),
        ("text", "text", "text/plain", "hällo".encode()),
        ("value", "value", "application/json", b"[1]"),
        ("stored", "stored", "application/json", b'{"a":[1]}'),
        ("table", "table", "application/x-arrow", b"ARROW1"),
    ]


@pytest.mark.usefixtures("_brief_pauses")
async def test_a_reference_of_another_organization_names_nothing(
    worker: Bench, server: Script
) -> None:
    payload = await worker.payloads.put_payload(
        b'"secret"',
        tenant_id=TENANT,
        organization_id=OrganizationId("east"),
        media_type="text/plain",
    )
    ref = {"kind": "result_ref", "sha256": payload.sha256, "media_type": "text/plain"}
    found = await send(worker, {"url": server.url, "method": "POST", "files": {"f": ref}})
    assert kind_of(found) == "reference_not_available"
    found = await send(
        worker, {"url": server.url, "method": "POST", "files": {"f": {**ref, "bytes": "many"}}}
    )
    assert kind_of(found) == "reference_not_available"
    wrong = {"kind": "result_ref", "sha256": "../../etc"}
    found = await send(worker, {"url": server.url, "method": "POST", "files": {"f": wrong}})
    assert kind_of(found) == "validation"


@pytest.mark.parametrize(
    "fields",
    [
        {"response_type": "xml"},
        {"files": ["x"]},
        {"form": [1]},
        {"params": [1]},
        {"headers": ["x"]},
        {"method": "GE T"},
        {"files": {"a": "x"}, "form": "a=1"},
    ],
)
async def test_fields_that_make_no_request_are_refused(
    worker: Bench, server: Script, fields: dict[str, Any]
) -> None:
    assert kind_of(await send(worker, {"url": server.url, **fields})) == "validation"
    assert not server.seen


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, "client_error", False),
        (401, "auth", False),
        (403, "auth", False),
        (404, "not_found", False),
        (408, "client_error", True),
        (409, "client_error", False),
        (425, "client_error", True),
        (429, "rate_limit", True),
        (500, "server_error", True),
        (503, "server_error", True),
    ],
)
async def test_every_status_has_its_kind(
    worker: Bench, server: Script, status: int, kind: str, *, retryable: bool
) -> None:
    server.answers(sends(b"<html>", status=status, headers={"Content-Type": "application/json"}))
    found = await send(worker, {"url": server.url, "response_type": "json"})
    assert found.error is not None
    assert (found.error.kind, found.error.retryable, found.error.code, found.error.status) == (
        kind,
        retryable,
        f"HTTP_{status}",
        status,
    )
    assert (found.data["status_code"], found.data["body"]) == (status, "<html>")


@pytest.mark.parametrize(
    ("text", "least", "most"),
    [
        ("5", 5, 5),
        ("9" * 400, 86_400, 86_400),
        (format_datetime(datetime.now(UTC) + timedelta(hours=20), usegmt=True), 60_000, 72_000),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
    ],
    ids=["seconds", "for ever", "a date", "a date that is over"],
)
async def test_retry_after_is_read_as_seconds_and_as_a_date(
    worker: Bench, server: Script, text: str, least: float, most: float
) -> None:
    server.answers(says(status=503, headers={"retry-after": text}))
    found = await send(worker, {"url": server.url})
    assert found.error is not None
    assert found.error.retry_after is not None
    assert least <= found.error.retry_after <= most


@pytest.mark.parametrize(
    "text",
    [
        *("soon", "-5", "١٢", ""),
        "Mon, 01 Jan 2024 00:00:00 +9999999999999",
        "Mon, 01 Jan 99999999999999999999999 00:00:00 GMT",
    ],
)
async def test_a_retry_after_that_says_nothing_is_ignored(
    worker: Bench, server: Script, text: str
) -> None:
    server.answers(says(status=503, headers={"Retry-After": text}))
    found = await send(worker, {"url": server.url})
    assert found.error is not None
    assert found.error.retry_after is None


def packed(body: bytes, window: int) -> bytes:
    packer = zlib.compressobj(wbits=window)
    return packer.compress(body) + packer.flush()


@pytest.mark.parametrize(
    ("packing", "body"),
    [
        ("gzip", packed(b'{"a":1}', 31)),
        ("GZIP", packed(b'{"a"', 31) + packed(b":1}", 31)),
        ("deflate", packed(b'{"a":1}', 15)),
        ("deflate", packed(b'{"a":1}', -15)),
    ],
)
async def test_packed_bodies_are_unpacked(
    worker: Bench, server: Script, packing: str, body: bytes
) -> None:
    server.answers(sends(body, headers={"Content-Encoding": packing}))
    assert (await send(worker, {"url": server.url})).data["body"] == {"a": 1}


@pytest.mark.parametrize(
    ("packing", "body"),
    [
        ("gzip", packed(b"x" * 100, 31)[:-6]),
        ("gzip", b"no gzip at all"),
        ("br", b"anything"),
        ("gzip, gzip", b"anything"),
    ],
)
async def test_bodies_that_cannot_be_unpacked_are_parse_errors(
    worker: Bench, server: Script, packing: str, body: bytes
) -> None:
    server.answers(sends(body, headers={"Content-Encoding": packing}))
    assert kind_of(await send(worker, {"url": server.url})) == "parse"


async def test_a_bomb_is_left_alone_long_before_the_cap(server: Script) -> None:
    bomb = packed(bytes(32 * 1024 * 1024), 31)
    server.answers(sends(bomb, headers={"Content-Encoding": "gzip"}))
    async with bench() as worker:
        found = await send(worker, {"url": server.url})
    assert found.error is not None
    assert found.error.kind == "payload_too_large"
    assert "200 times" in found.error.message


async def test_a_redirect_with_a_body_sends_it_again(worker: Bench, server: Script) -> None:
    server.answers(
        sends(b"", status=307, headers={"Location": "/next"}),
        says({}),
    )
    await send(worker, {"url": server.url, "method": "POST", "files": {"a": "x"}})
    assert [b"x" in seen.body for seen in server.seen] == [True, True]
    server.answers(sends(b"", status=302, headers={"Location": "/next"}), says({}))
    await send(worker, {"url": server.url, "method": "POST", "json": {"a": 1}})
    assert (server.seen[-1].method, server.seen[-1].body) == ("GET", b"")
    assert "Content-Type" not in server.seen[-1].headers


async def test_redirects_have_an_end_and_stay_with_http(worker: Bench, server: Script) -> None:
    server.answers(sends(b"", status=302, headers={"Location": "/again"}))
    assert kind_of(await send(worker, {"url": server.url})) == "client_error"
    assert len(server.seen) == 11
    for target in ("file:///etc/passwd", "gopher://x/", "http://", "//[bad"):
        server.answers(sends(b"", status=302, headers={"Location": target}))
        assert kind_of(await send(worker, {"url": server.url})) == "client_error"


async def test_no_secret_header_follows_a_redirect_to_another_host(
    worker: Bench, server: Script
) -> None:
    await worker.put_credential("shop", {"header": "X-Mine", "value": "v-123456"}, kind="api_key")
    async with script() as other:
        other.answers(says({}))
        server.answers(sends(b"", status=307, headers={"Location": other.url}))
        headers = {"X-Token": "t", "Accept": "text/html"}
        await send(worker, {"url": server.url, "headers": headers}, auth="shop")
        (seen,) = other.seen
        assert (seen.headers["Accept"], "X-Token" in seen.headers, "X-Mine" in seen.headers) == (
            "text/html",
            False,
            False,
        )


async def test_a_password_in_an_address_is_not_told(worker: Bench) -> None:
    for url in ("http://me:hunter22@127.0.0.1:9/", "ftp://me:hunter22@x/"):
        found = await send(worker, {"url": url})
        assert found.error is not None
        assert "hunter22" not in found.error.message


async def test_a_certificate_is_checked_unless_the_task_says_otherwise(worker: Bench) -> None:
    async with script(tls=self_signed()) as secure:
        secure.answers(says({"a": 1}))
        checked = await send(worker, {"url": secure.url})
        assert kind_of(checked) == "connection"
        assert not secure.seen
        unchecked = await send(worker, {"url": secure.url, "verify_ssl": False})
        assert unchecked.data["body"] == {"a": 1}


@pytest.mark.parametrize("field", ["verify_ssl", "follow_redirects"])
async def test_a_flag_that_is_neither_true_nor_false_is_refused(
    worker: Bench, server: Script, field: str
) -> None:
    server.answers(says({}))
    for given in ("perhaps", 2, [True], ""):
        found = await send(worker, {"url": server.url, field: given})
        assert found.error is not None
        assert (found.error.kind, server.seen) == ("validation", [])
        assert f"field '{field}': {given!r} is neither true nor false" in found.error.message
    for given in (None, "no", "on", 1, False):
        assert (await send(worker, {"url": server.url, field: given})).error is None


async def test_connections_are_used_again(worker: Bench, server: Script) -> None:
    ports: set[Any] = set()

    async def note(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        return web.json_response({})

    server.answers(note)
    for _ in range(5):
        await send(worker, {"url": server.url})
    assert len(ports) == 1


async def test_a_script_is_fetched_under_the_same_rules(worker: Bench, server: Script) -> None:
    code = b"result = n + 1"
    server.answers(sends(code), sends(code), says(status=404))
    digest = hashlib.sha256(code).hexdigest()

    async def run(script: dict[str, Any]) -> Outcome:
        call = call_of({"script": script})
        return await worker.tools.run(structs.replace(call, kind="python", input={"n": 1}))

    assert (await run({"uri": server.url, "sha256": digest})).data == 2
    altered = await run({"source": {"type": "http", "endpoint": server.url}, "sha256": "0" * 64})
    assert kind_of(altered) == "validation"
    assert kind_of(await run({"uri": server.url})) == "not_found"
    assert kind_of(await run({"uri": "http://10.0.0.1/"})) == "config"
    late = await run({"source": {"endpoint": server.url, "timeout": "late"}})
    assert late.error is not None
    assert (late.error.kind, "'source.timeout': 'late'" in late.error.message) == ("validation", 1)
    assert kind_of(await run({"uri": "s3://bucket/key"})) == "config"
    assert kind_of(await run({"uri": "ftp://x/"})) == "validation"


async def test_a_refusal_names_method_url_and_the_start_of_the_answer_masked(
    worker: Bench, server: Script
) -> None:
    worker.mask.learn_secrets({"token": "canary-canary"})
    body = "not  today,\ncanary-canary " + "x" * 1000
    server.answers(sends(body.encode(), status=500, headers={"Content-Type": "text/plain"}))
    found = await send(worker, {"url": server.url + "/p", "method": "POST"})
    assert found.error is not None
    assert found.error.details is not None
    assert found.error.details["method"] == "POST"
    assert found.error.details["url"] == server.url + "/p"
    start = found.error.details["body_start"]
    assert start.startswith("not today, *** xxx")
    assert len(start) == 300
    assert summarize_error(codec.to_builtins(found.error)) == f"{found.error.message}: {start}"
