"""The nats tool against a real server."""

import asyncio
import secrets
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from typing import Any

import nats as client
import pytest
from msgspec import structs
from nats.js.api import StreamConfig
from tests.support.calls import call_of
from tests.support.polling import eventually
from tests.support.servers import NatsServer
from tests.support.working import Bench, bench, command_of

from noetl_contracts import codec
from noetl_contracts.requests.facts import CommandCompleted
from noetl_worker.tools.calls.call import Outcome


@pytest.fixture
async def worker(nats: NatsServer) -> AsyncIterator[Bench]:
    async with bench() as found:
        await found.put_credential("bus", {"url": nats.url}, kind="nats")
        yield found


@pytest.fixture
def bucket() -> str:
    return f"b_{secrets.token_hex(6)}"


@pytest.fixture
async def stream(nats: NatsServer) -> AsyncIterator[str]:
    name = f"S_{secrets.token_hex(6)}"
    connection = await client.connect(nats.url)
    jetstream = connection.jetstream()
    await jetstream.add_stream(StreamConfig(name=name, subjects=[f"{name}.>"]))
    yield name
    await jetstream.delete_stream(name)
    await connection.close()


async def run(worker: Bench, operation: str, *, auth: Any = "bus", **fields: Any) -> Outcome:
    given = {"operation": operation, **fields}
    return await worker.tools.run(call_of("nats", given, auth=auth, timeout_s=60))


async def data(worker: Bench, operation: str, **fields: Any) -> dict[str, Any]:
    found = await run(worker, operation, **fields)
    assert found.error is None, found.error
    assert isinstance(found.data, dict)
    return found.data


def kind_of(outcome: Outcome) -> str | None:
    return None if outcome.error is None else outcome.error.kind


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"user": "ann", "n": [1, None]}, {"user": "ann", "n": [1, None]}),
        ("plain text", "plain text"),
        ('{"a":1}', {"a": 1}),
        ("", ""),
        (7, 7),
        (None, None),
        (True, True),
        ("ä\nb", "ä\nb"),
    ],
)
async def test_what_is_put_is_what_is_got(
    worker: Bench, bucket: str, value: Any, expected: Any
) -> None:
    put = await worker.tools.run(
        call_of(
            "nats", {"operation": "kv_put", "bucket": bucket, "key": "k"}, auth="bus", value=value
        )
    )
    assert put.data == {"status": "ok", "bucket": bucket, "key": "k", "revision": 1}
    assert await data(worker, "kv_get", bucket=bucket, key="k") == {
        "status": "ok",
        "bucket": bucket,
        "key": "k",
        "value": expected,
        "revision": 1,
    }


async def test_keys_are_listed_deleted_and_purged(worker: Bench, bucket: str) -> None:
    for key in ("b/1", "a.x", "c"):
        await data(worker, "kv_put", bucket=bucket, key=key, value=1)
    assert (await data(worker, "kv_keys", bucket=bucket))["keys"] == ["a.x", "b/1", "c"]
    await data(worker, "kv_delete", bucket=bucket, key="a.x")
    await data(worker, "kv_purge", bucket=bucket, key="b/1")
    assert (await data(worker, "kv_keys", bucket=bucket))["keys"] == ["c"]
    gone = await run(worker, "kv_get", bucket=bucket, key="a.x")
    assert gone.error is not None
    assert (gone.error.kind, gone.error.retryable) == ("not_found", False)
    await data(worker, "kv_delete", bucket=bucket, key="c")
    assert (await data(worker, "kv_keys", bucket=bucket))["keys"] == []


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ("kv_get", {"bucket": "no_such_bucket", "key": "k"}),
        ("kv_keys", {"bucket": "no_such_bucket"}),
        ("kv_delete", {"bucket": "no_such_bucket", "key": "k"}),
        ("js_get_msg", {"stream": "NO_SUCH", "seq": 1}),
        ("js_stream_info", {"stream": "NO_SUCH"}),
        ("js_publish", {"subject": "nobody.listens", "payload": 1}),
        ("object_get", {"bucket": "no_such_bucket", "name": "x"}),
        ("object_list", {"bucket": "no_such_bucket"}),
    ],
)
async def test_what_is_not_there_is_not_found(
    worker: Bench, operation: str, fields: dict[str, Any]
) -> None:
    assert kind_of(await run(worker, operation, **fields)) == "not_found"


async def test_a_key_can_expire(worker: Bench, bucket: str) -> None:
    await data(worker, "kv_put", bucket=bucket, key="short", value=1, ttl="1s")
    await data(worker, "kv_put", bucket=bucket, key="long", value=1, ttl=3600)
    await data(worker, "kv_put", bucket=bucket, key="ever", value=1)

    async def is_gone() -> bool:
        return kind_of(await run(worker, "kv_get", bucket=bucket, key="short")) == "not_found"

    await eventually(is_gone)
    assert (await data(worker, "kv_keys", bucket=bucket))["keys"] == ["ever", "long"]


async def test_a_bucket_whose_keys_cannot_expire_says_so(
    worker: Bench, bucket: str, nats: NatsServer
) -> None:
    connection = await client.connect(nats.url)
    name = f"KV_{bucket}"
    await connection.jetstream().add_stream(
        StreamConfig(name=name, subjects=[f"$KV.{bucket}.>"], max_msgs_per_subject=1)
    )
    await connection.close()
    assert kind_of(await run(worker, "kv_put", bucket=bucket, key="k", value=1, ttl=60)) == "config"
    await data(worker, "kv_put", bucket=bucket, key="k", value=1)


async def test_messages_are_published_once_and_read_back(worker: Bench, stream: str) -> None:
    subject = f"{stream}.orders"
    fields = {"operation": "js_publish", "subject": subject, "payload": {"id": 1}}
    call = call_of("nats", {**fields, "headers": {"X-A": 5, "X-N": None}}, auth="bus")
    sent = (await worker.tools.run(call)).data
    assert sent == {
        "status": "ok",
        "subject": subject,
        "stream": stream,
        "seq": 1,
        "duplicate": False,
    }
    again = (await worker.tools.run(structs.replace(call, attempt=2))).data
    assert (again["seq"], again["duplicate"]) == (1, True)
    by_number = await data(worker, "js_get_msg", stream=stream, seq="1")
    by_subject = await data(worker, "js_get_msg", stream=stream, subject=subject)
    assert by_number["data"] == by_subject["data"] == {"id": 1}
    assert (by_number["subject"], by_number["seq"]) == (subject, 1)
    assert by_number["headers"]["X-A"] == "5"
    assert "X-N" not in by_number["headers"]
    info = await data(worker, "js_stream_info", stream=stream)
    assert (info["messages"], info["last_seq"], info["subjects"]) == (1, 1, [f"{stream}.>"])
    assert kind_of(await run(worker, "js_get_msg", stream=stream, seq=99)) == "not_found"


async def test_a_message_can_be_meant_for_one_stream(worker: Bench, stream: str) -> None:
    found = await run(
        worker, "js_publish", subject=f"{stream}.x", payload=1, stream=f"{stream}_OTHER"
    )
    assert kind_of(found) == "client_error"


async def test_objects_are_kept_whole(worker: Bench, bucket: str) -> None:
    text = "x" * 300_000
    put = await data(worker, "object_put", bucket=bucket, name="dir/a b.txt", data=text)
    assert (put["name"], put["size"]) == ("dir/a b.txt", 300_000)
    await data(worker, "object_put", bucket=bucket, name="j", data={"a": [1]})
    got = await data(worker, "object_get", bucket=bucket, name="dir/a b.txt")
    assert got["data"] == text
    assert (await data(worker, "object_get", bucket=bucket, name="j"))["data"] == {"a": [1]}
    listed = await data(worker, "object_list", bucket=bucket)
    assert [item["name"] for item in listed["objects"]] == ["dir/a b.txt", "j"]
    await data(worker, "object_delete", bucket=bucket, name="j")
    assert kind_of(await run(worker, "object_get", bucket=bucket, name="j")) == "not_found"
    listed = await data(worker, "object_list", bucket=bucket)
    assert [item["name"] for item in listed["objects"]] == ["dir/a b.txt"]


async def test_a_link_to_another_bucket_is_not_followed(
    worker: Bench, bucket: str, nats: NatsServer
) -> None:
    connection = await client.connect(nats.url)
    jetstream = connection.jetstream()
    await jetstream.create_object_store(bucket)
    link = {"bucket": "noetl-secret", "name": "x"}
    about = {"name": "link", "bucket": bucket, "nuid": "n", "size": 0, "options": {"link": link}}
    name = urlsafe_b64encode(b"link").decode()
    await jetstream.publish(f"$O.{bucket}.M.{name}", codec.encode_json(about))
    await connection.close()
    assert kind_of(await run(worker, "object_get", bucket=bucket, name="link")) == "config"


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ("kv_get", {"bucket": "noetl", "key": "k"}),
        ("kv_put", {"bucket": "NOETL_STATE", "key": "k", "value": 1}),
        ("kv_keys", {"bucket": "noetl-leases"}),
        ("object_get", {"bucket": "noetl_payloads", "name": "x"}),
        ("js_get_msg", {"stream": "NOETL_COMMANDS", "seq": 1}),
        ("js_get_msg", {"stream": "noetl_ingest", "seq": 1}),
        ("js_get_msg", {"stream": "KV_noetl_x", "seq": 1}),
        ("js_get_msg", {"stream": "OBJ_NOETL", "seq": 1}),
        ("js_stream_info", {"stream": "NOETL_EVENTS"}),
        ("js_publish", {"subject": "noetl.ingest.0.acme.west", "payload": 1}),
        ("js_publish", {"subject": "NOETL.commands", "payload": 1}),
        ("js_publish", {"subject": "$JS.API.STREAM.DELETE.X", "payload": 1}),
        ("js_publish", {"subject": "$KV.noetl.k", "payload": 1}),
        ("js_publish", {"subject": "$SYS.REQ.SERVER.PING", "payload": 1}),
        ("js_publish", {"subject": "_INBOX.x.y", "payload": 1}),
        ("js_publish", {"subject": "_inbox.x", "payload": 1}),
        ("js_get_msg", {"stream": "S", "subject": "noetl.events.0"}),
    ],
)
async def test_what_belongs_to_the_engine_or_the_server_is_refused(
    worker: Bench, operation: str, fields: dict[str, Any]
) -> None:
    assert kind_of(await run(worker, operation, **fields)) == "config"


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ("kv_fetch", {}),
        ("kv_get", {"bucket": "b"}),
        ("kv_get", {"key": "k"}),
        ("kv_get", {"bucket": "a.b", "key": "k"}),
        ("kv_get", {"bucket": "b", "key": "a b"}),
        ("kv_get", {"bucket": "b", "key": ".a"}),
        ("kv_get", {"bucket": "b", "key": "a..b"}),
        ("kv_get", {"bucket": "b", "key": ">"}),
        ("kv_get", {"bucket": "b", "key": 5}),
        ("kv_put", {"bucket": "b", "key": "k"}),
        ("kv_put", {"bucket": "b", "key": "k", "value": 1, "ttl": "soon"}),
        ("kv_put", {"bucket": "b", "key": "k", "value": 1, "ttl": 0.1}),
        ("js_publish", {"subject": "a.*", "payload": 1}),
        ("js_publish", {"subject": "a.>", "payload": 1}),
        ("js_publish", {"subject": "a b", "payload": 1}),
        ("js_publish", {"subject": "a\r\nPUB b 1", "payload": 1}),
        ("js_publish", {"subject": "a", "payload": 1, "headers": {"X": "a\r\nY: b"}}),
        ("js_publish", {"subject": "a", "payload": 1, "headers": ["x"]}),
        ("js_get_msg", {"stream": "S"}),
        ("js_get_msg", {"stream": "S", "seq": 0}),
        ("js_get_msg", {"stream": "S.>", "seq": 1}),
        ("object_get", {"bucket": "b", "name": "a\nb"}),
    ],
)
async def test_fields_that_make_no_operation_are_refused(
    worker: Bench, operation: str, fields: dict[str, Any]
) -> None:
    assert kind_of(await run(worker, operation, **fields)) == "validation"


async def test_a_server_is_named_by_a_credential(worker: Bench, nats: NatsServer) -> None:
    await worker.put_credential("db", {"dsn": "postgres://x"})
    await worker.put_credential("empty", {"user": "x"}, kind="nats")
    for auth in (None, "db", "empty", "unknown"):
        assert kind_of(await run(worker, "kv_keys", bucket="b", auth=auth)) == "config"
    away = {"url": "nats://127.0.0.1:9"}
    await worker.put_credential("away", away, kind="nats")
    found = await run(worker, "kv_keys", bucket="b", auth="away")
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("connection", True)
    wrong = {"url": f"nats://127.0.0.1:{nats.port}", "user": "admin", "password": "hunter22"}
    await worker.put_credential("wrong", wrong, kind="nats")
    found = await run(worker, "kv_keys", bucket="b", auth="wrong")
    assert found.error is not None
    assert (found.error.kind, found.error.retryable) == ("auth", False)
    assert "hunter22" not in found.error.message


async def test_what_the_server_forbids_is_an_auth_error(
    worker: Bench, bucket: str, nats: NatsServer
) -> None:
    await worker.put_credential("low", {"url": nats.url_for("worker")}, kind="nats")
    for operation in ("kv_keys", "object_list"):
        found = await run(worker, operation, bucket=bucket, auth="low")
        assert found.error is not None
        assert found.error.kind == "auth"
        assert "the NATS server forbids it" in found.error.message


async def test_one_connection_serves_many_calls(
    worker: Bench, bucket: str, nats: NatsServer
) -> None:
    await data(worker, "kv_put", bucket=bucket, key="k0", value=0)
    first = await worker.tools.nats._connections.get_connection("bus", call_of("nats", {}).site)
    puts = (data(worker, "kv_put", bucket=bucket, key=f"k{n}", value=n) for n in range(20))
    await asyncio.gather(*puts)
    again = await worker.tools.nats._connections.get_connection("bus", call_of("nats", {}).site)
    assert again is first
    await first.client.close()
    assert len((await data(worker, "kv_keys", bucket=bucket))["keys"]) == 20


async def test_a_value_beyond_a_message_is_refused(worker: Bench, bucket: str) -> None:
    found = await run(worker, "kv_put", bucket=bucket, key="k", value="x" * (2 * 1024 * 1024))
    assert kind_of(found) == "payload_too_large"
    assert (await data(worker, "kv_put", bucket=bucket, key="k", value=1))["revision"] == 1


async def test_a_step_reads_the_keys_of_what_it_got(worker: Bench, bucket: str) -> None:
    await data(worker, "kv_put", bucket=bucket, key="s", value={"user": "ann"})
    step = f"""
  - step: s
    tool:
      - {{name: get, kind: nats, auth: bus, operation: kv_get, input: {{bucket: {bucket}, key: s}}}}
      - {{name: say, kind: noop, result: "{{{{ get.user }}}} {{{{ get.value.user }}}}"}}
"""
    found = await worker.run(command_of(step))
    (fact,) = [item for item in found if isinstance(item, CommandCompleted)]
    assert await worker.value(fact.result) == "ann ann"
