"""The `nats` tool: key-value buckets, streams and object stores of a server of the author's."""

from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, assert_never, get_args

import msgspec
import nats.errors
from msgspec import Struct
from nats.js import JetStreamContext
from nats.js import errors as js_errors
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_playbook.model import coercion
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.text_values import format_text
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.payloads.task_timeout import task_timeout
from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.tools.calls.call_spans import add_traceparent
from noetl_worker.tools.nats import names
from noetl_worker.tools.nats.connection import NatsConnection, NatsConnections
from noetl_worker.tools.nats.names import InvalidNatsName
from noetl_worker.tools.nats.permissions import WatchedCall

Operation = Literal[
    "kv_get",
    "kv_put",
    "kv_delete",
    "kv_keys",
    "kv_purge",
    "js_publish",
    "js_get_msg",
    "js_stream_info",
    "object_put",
    "object_get",
    "object_delete",
    "object_list",
]

_FIELDS = (
    *("operation", "bucket", "key", "value", "ttl", "subject", "payload", "headers"),
    *("stream", "seq", "name", "data"),
)
OBJECT_BYTES_MAX = 64 * 1024 * 1024
LISTED_MAX = 100_000
_TTL_S_MAX = 10**9
_TTL_DISABLED = 10166
_REQUEST_S_MAX = 30.0
_FULL = frozenset({10023, 10047, 10077})


class NatsTask(Struct, frozen=True, kw_only=True):
    """A task's fields, and the server that it works on."""

    fields: dict[str, Any]
    jetstream: JetStreamContext
    message_id: str
    sends_traceparent: bool

    def get_name(self, name: str, check: Callable[[str], None]) -> str:
        """Return a field that must be a name; raises `ToolFailure` or `InvalidNatsName`."""
        value = self.fields.get(name)
        if not isinstance(value, str) or not value:
            raise _build_invalid_failure(f"field '{name}' is needed for {self.fields['operation']}")
        check(value)
        return value

    def encode_field(self, name: str) -> bytes:
        """Encode a field that holds a value: text as it is, everything else as JSON."""
        if name not in self.fields:
            raise _build_invalid_failure(f"field '{name}' is needed for {self.fields['operation']}")
        return format_text(self.fields[name]).encode()


class NatsTool:
    """Works on the servers that credentials name."""

    def __init__(self, vault: CredentialVault, *, sends_traceparent: bool = True) -> None:
        self._connections = NatsConnections(vault)
        self._sends_traceparent = sends_traceparent

    async def run(self, call: Call) -> Outcome:
        """Run one operation."""
        watched: WatchedCall | None = None
        try:
            fields = _collect_fields(call)
            async with task_timeout(call.timeout.total):
                connected = await self._connections.get_connection(call.auth, call.site)
                async with connected.permissions.watch_call(fields) as watched:
                    task = self._build_task(call, fields, connected)
                    return Outcome(data=await _run_operation(task))
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        except InvalidNatsName as problem:
            kind = "config" if problem.is_refused else "validation"
            return Outcome(error=build_error(kind, str(problem), source="nats"))
        except (nats.errors.Error, TimeoutError, OSError, ValueError) as problem:
            complaint = "" if watched is None else watched.complaint
            return Outcome(error=_classify_error(problem, complaint, call))

    def _build_task(
        self, call: Call, fields: dict[str, Any], connected: NatsConnection
    ) -> NatsTask:
        timeout_s = min(call.timeout.total, _REQUEST_S_MAX)
        return NatsTask(
            fields=fields,
            jetstream=connected.client.jetstream(timeout=timeout_s),
            message_id=call.idempotency_key,
            sends_traceparent=self._sends_traceparent,
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._connections.close()


def _collect_fields(call: Call) -> dict[str, Any]:
    """Gather the fields; inputs fill those that the task leaves out. Raises `ToolFailure`."""
    inputs = {name: call.input[name] for name in _FIELDS if name in call.input}
    inputs.update((name, item) for name, item in call.fields.items() if item is not None)
    if inputs.get("operation") not in get_args(Operation):
        known_names = ", ".join(get_args(Operation))
        raise _build_invalid_failure(
            f"field 'operation': {inputs.get('operation')!r} is none of {known_names}"
        )
    return inputs


async def _run_operation(task: NatsTask) -> dict[str, Any]:
    operation: Operation = task.fields["operation"]
    match operation:
        case "kv_get" | "kv_put" | "kv_delete" | "kv_keys" | "kv_purge":
            return await _run_on_bucket(operation, task)
        case "js_publish":
            return await _publish_message(task)
        case "js_get_msg":
            return await _get_message(task)
        case "js_stream_info":
            return await _get_stream_info(task)
        case "object_put" | "object_get" | "object_delete" | "object_list":
            return await _run_on_objects(operation, task)
        case _:
            assert_never(operation)


async def _run_on_bucket(operation: str, task: NatsTask) -> dict[str, Any]:
    bucket = task.get_name("bucket", names.check_bucket_name)
    if operation == "kv_keys":
        return await _list_keys(await task.jetstream.key_value(bucket), bucket)
    key = task.get_name("key", names.check_key_name)
    key_fields = {"status": "ok", "bucket": bucket, "key": key}
    if operation == "kv_put":
        return {**key_fields, "revision": await _put_key(task, bucket, key)}
    store = await task.jetstream.key_value(bucket)
    if operation == "kv_get":
        entry = await store.get(key)
        return {
            **key_fields,
            **_decode_value("value", entry.value or b""),
            "revision": entry.revision,
        }
    await (store.delete(key) if operation == "kv_delete" else store.purge(key))
    return key_fields


async def _put_key(task: NatsTask, bucket: str, key: str) -> int:
    """Write a key; the bucket is made when there is none."""
    data, ttl_s = task.encode_field("value"), None
    if task.fields.get("ttl") is not None:
        ttl_s = coercion.coerce_duration_s(task.fields["ttl"])
        if ttl_s is None or not 1 <= ttl_s <= _TTL_S_MAX:
            text = f"field 'ttl' must be a duration of at least a second, {_TTL_S_MAX} at most"
            raise _build_invalid_failure(text)
    try:
        await task.jetstream.key_value(bucket)
    except js_errors.BucketNotFoundError:
        await task.jetstream.create_key_value(bucket=bucket)
    acknowledged = await task.jetstream.publish(f"$KV.{bucket}.{key}", data, msg_ttl=ttl_s)
    return acknowledged.seq


async def _list_keys(store: KeyValue, bucket: str) -> dict[str, Any]:
    try:
        keys = await store.keys()
    except js_errors.NoKeysError:
        keys = []
    _check_count(len(keys), "keys")
    return {"status": "ok", "bucket": bucket, "keys": sorted(keys)}


async def _publish_message(task: NatsTask) -> dict[str, Any]:
    subject = task.get_name("subject", names.check_subject_name)
    stream = task.get_name("stream", names.check_stream_name) if "stream" in task.fields else None
    header_fields = task.fields.get("headers") or {}
    if not isinstance(header_fields, dict):
        raise _build_invalid_failure("field 'headers' must be a mapping")
    headers = {
        format_text(name): format_text(value)
        for name, value in header_fields.items()
        if value is not None
    }
    if any(char in part for pair in headers.items() for part in pair for char in "\r\n\0"):
        raise _build_invalid_failure("field 'headers' cannot hold line ends")
    # A repeated attempt is the same message, which the stream takes once.
    headers.setdefault("Nats-Msg-Id", task.message_id)
    if task.sends_traceparent:
        add_traceparent(headers)
    publish_ack = await task.jetstream.publish(
        subject, task.encode_field("payload"), stream=stream, headers=headers
    )
    return {
        "status": "ok",
        "subject": subject,
        "stream": publish_ack.stream,
        "seq": publish_ack.seq,
        "duplicate": bool(publish_ack.duplicate),
    }


async def _get_message(task: NatsTask) -> dict[str, Any]:
    """Read a message by its number, or the latest one of a subject."""
    stream = task.get_name("stream", names.check_stream_name)
    sequence = coercion.coerce_integer(task.fields.get("seq"))
    if sequence is not None and sequence > 0:
        message = await task.jetstream.get_msg(stream, seq=sequence)
    elif "seq" not in task.fields and "subject" in task.fields:
        subject = task.get_name("subject", names.check_subject_name)
        message = await task.jetstream.get_msg(stream, subject=subject)
    else:
        raise _build_invalid_failure("js_get_msg needs 'seq', a number above 0, or 'subject'")
    return {
        "status": "ok",
        "stream": stream,
        "subject": message.subject,
        "seq": message.seq,
        **_decode_value("data", message.data or b""),
        "headers": dict(message.headers or {}),
        "time": None if message.time is None else message.time.isoformat(),
    }


async def _get_stream_info(task: NatsTask) -> dict[str, Any]:
    stream = task.get_name("stream", names.check_stream_name)
    info = await task.jetstream.stream_info(stream)
    state = info.state
    return {
        "status": "ok",
        "stream": stream,
        "subjects": list(info.config.subjects or []),
        "messages": state.messages,
        "bytes": state.bytes,
        "first_seq": state.first_seq,
        "last_seq": state.last_seq,
        "consumers": state.consumer_count,
    }


async def _run_on_objects(operation: str, task: NatsTask) -> dict[str, Any]:
    bucket = task.get_name("bucket", names.check_bucket_name)
    if operation == "object_put":
        return await _put_object(task, bucket)
    if operation == "object_list":
        return await _list_objects(await task.jetstream.object_store(bucket), bucket)
    name = task.get_name("name", names.check_object_name)
    store = await task.jetstream.object_store(bucket)
    if operation == "object_get":
        return await _get_object(store, bucket, name)
    await store.delete(name)
    return {"status": "ok", "bucket": bucket, "name": name}


async def _put_object(task: NatsTask, bucket: str) -> dict[str, Any]:
    name = task.get_name("name", names.check_object_name)
    data = task.encode_field("data")
    _check_size(len(data), name)
    try:
        store = await task.jetstream.object_store(bucket)
    except js_errors.BucketNotFoundError:
        store = await task.jetstream.create_object_store(bucket)
    info = await store.put(name, data)
    return {"status": "ok", "bucket": bucket, **_describe_object(info)}


async def _get_object(store: ObjectStore, bucket: str, name: str) -> dict[str, Any]:
    info = await store.get_info(name)
    if info.is_link():
        # A link may lead to a bucket that the task could not name.
        raise ToolFailure(
            build_error(
                "config", f"object '{name}' is a link: read what it leads to", source="nats"
            )
        )
    _check_size(info.size or 0, name)
    stored_object = await store.get(name)
    return {
        "status": "ok",
        "bucket": bucket,
        **_describe_object(info),
        **_decode_value("data", stored_object.data or b""),
    }


async def _list_objects(store: ObjectStore, bucket: str) -> dict[str, Any]:
    try:
        stored_objects = await store.list(ignore_deletes=True)
    except js_errors.NotFoundError:
        stored_objects = []
    _check_count(len(stored_objects), "objects")
    objects = [
        _describe_object(info) for info in sorted(stored_objects, key=lambda info: info.name)
    ]
    return {"status": "ok", "bucket": bucket, "objects": objects}


def _describe_object(info: Any) -> dict[str, Any]:
    return {"name": info.name, "size": info.size, "digest": info.digest}


def _decode_value(name: str, data: bytes) -> dict[str, Any]:
    """Read a value: JSON if it parses, else text, else base64."""
    try:
        return {name: codec.decode_exactly(data)}
    except (msgspec.DecodeError, RecursionError):
        return _decode_text(name, data)


def _decode_text(name: str, data: bytes) -> dict[str, Any]:
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {name: b64encode(data).decode(), "encoding": "base64"}


def _check_size(size: int, name: str) -> None:
    if size > OBJECT_BYTES_MAX:
        text = f"object '{name}' has {size} bytes, the limit is {OBJECT_BYTES_MAX}"
        raise ToolFailure(build_error("payload_too_large", text, source="nats"))


def _check_count(count: int, noun: str) -> None:
    if count > LISTED_MAX:
        text = f"the bucket has {count} {noun}, the limit of a listing is {LISTED_MAX}"
        raise ToolFailure(build_error("limit", text, code="LISTED_MAX", source="nats"))


def _build_invalid_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source="nats"))


def _classify_error(problem: Exception, complaint: str, call: Call) -> ErrorObject:
    """Turn what the client raises into an error."""
    if complaint:
        return build_error("auth", f"the NATS server forbids it: {complaint}", source="nats")
    match problem:
        case js_errors.NotFoundError():
            message = "there is no such bucket, key, object, stream or message"
            return build_error("not_found", f"{message}: {problem}", source="nats")
        case js_errors.NoStreamResponseError():
            text = f"no stream takes subject '{call.fields.get('subject')}'"
            return build_error("not_found", text, source="nats")
        case nats.errors.MaxPayloadError():
            text = "the value is larger than the server's messages may be: use object_put"
            return build_error("payload_too_large", text, source="nats")
        case js_errors.APIError():
            return _classify_refusal(problem)
        case TimeoutError():
            text = f"the NATS server did not answer within {call.timeout.total:g} s"
            return build_error("timeout", text, source="nats")
        case ValueError() | nats.errors.BadSubjectError() | nats.errors.BadHeaderError():
            return build_error("validation", f"the request is malformed: {problem}", source="nats")
    reason = str(problem) or type(problem).__name__
    return build_error("connection", f"the NATS server is not reachable: {reason}", source="nats")


def _classify_refusal(problem: js_errors.APIError) -> ErrorObject:
    """Classify an answer of JetStream."""
    if isinstance(problem, js_errors.ServiceUnavailableError | js_errors.ServerError):
        kind = "storage_quota" if problem.err_code in _FULL else "connection"
        return build_error(kind, f"JetStream is not available: {problem}", source="nats")
    if problem.err_code == _TTL_DISABLED:
        text = "the bucket's keys cannot expire one by one: make it with per-message TTL"
        return build_error("config", text, source="nats")
    return build_error(
        "client_error", f"JetStream refused it: {problem}", code="NATS", source="nats"
    )


@asynccontextmanager
async def open_nats(
    *, vault: CredentialVault, sends_traceparent: bool = True
) -> AsyncIterator[NatsTool]:
    """Hold the connections while the block runs."""
    tool = NatsTool(vault, sends_traceparent=sends_traceparent)
    try:
        yield tool
    finally:
        await tool.close()
