"""The messages of an Arrow stream, by their own descriptions, before anything is built of them."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from noetl_storage.unpacking.flatbuffers import Table
from noetl_storage.unpacking.refusals import Malformed, too_large

SCHEMA, DICTIONARY, BATCH = 1, 2, 3
_CONTINUED = b"\xff\xff\xff\xff"
# How a batch says since before there was a field for it that its buffers are packed.
_OLD_PACKING = b"ARROW:experimental_compression"
_TIMESTAMP = 10
# What Arrow builds of a field, of a key with its value, and of a column of one batch, about.
_FIELD_BYTES, _KEY_VALUE_BYTES, _COLUMN_BYTES = 512, 128, 256
_LENGTH_BYTES = 8
# Any reader may build so much of what describes a table.
DESCRIBED_BYTES_MIN = 64 * 1024 * 1024


class Message(Struct, frozen=True, kw_only=True):
    """A message: its kind, its description, and where its body lies."""

    kind: int
    table: Any
    metadata: bytes
    at: int
    body_bytes: int


class Buffer(Struct, frozen=True, kw_only=True):
    """A buffer of a batch; `unpacked_bytes` is what it says that it takes, None as it lies."""

    at: int
    size: int
    unpacked_bytes: int | None


def messages_of(source: Any) -> Iterator[Message]:
    """Yield the messages up to the end of the stream; raises `Malformed`."""
    at, end = 0, source.size()
    while (head := source.read_at(_LENGTH_BYTES, at)) and len(head) >= len(_CONTINUED):
        is_new = head.startswith(_CONTINUED)
        length = int.from_bytes(head[4:] if is_new else head[:4], "little", signed=True)
        at += _LENGTH_BYTES if is_new else len(_CONTINUED)
        if length == 0:
            return
        if length < 0 or at + length > end:
            raise Malformed("a message has no length")
        message = _message(source.read_at(length, at), at + length)
        at = message.at + message.body_bytes
        if message.body_bytes < 0 or at > end:
            raise Malformed("a message ends behind the stream")
        yield message


def buffers_of(source: Any, message: Message) -> Iterator[Buffer]:
    """Yield the buffers of a batch or dictionary; raises `Malformed`."""
    has_lengths = is_packed(message)
    numbers = _batch(message).numbers(2, 2)
    for offset, size in zip(numbers[::2], numbers[1::2], strict=True):
        if offset < 0 or size < 0 or offset + size > message.body_bytes:
            raise Malformed("a buffer lies outside of its message")
        yield _buffer(source, message.at + offset, size, is_packed=has_lengths)


def is_packed(message: Message) -> bool:
    """Tell whether the buffers of a batch or dictionary are packed; raises `Malformed`."""
    return _batch(message).table(3) is not None or _OLD_PACKING in message.metadata


def check(source: Any, *, bytes_max: int) -> None:
    """Refuse a stream that takes more than a bound; raises `PayloadTooLarge`, `Malformed`.

    What is not packed may be as long as it lies there.
    """
    taken_max, described_max = max(bytes_max, source.size()), max(bytes_max, DESCRIBED_BYTES_MIN)
    taken = described = 0
    dictionary_bytes: dict[int, int] = {}
    for message in messages_of(source):
        described += _described_bytes(message, bytes_max=described_max)
        if described > described_max:
            raise too_large("what describes an Arrow stream", described, described_max)
        if message.kind == SCHEMA:
            continue
        more = _taken_bytes(source, message)
        if message.kind == DICTIONARY:
            number = message.table.number(0, "<q")
            # What is added to a dictionary makes a new one of all: batches hold on to the old.
            more += dictionary_bytes.get(number, 0) if message.table.number(2, "<B") else 0
            dictionary_bytes[number] = more
        taken += more
        if taken > taken_max:
            raise too_large("an Arrow stream", taken, taken_max)


def check_schema(data: bytes, *, bytes_max: int) -> None:
    """Refuse a schema that becomes too much; raises `PayloadTooLarge`, `Malformed`."""
    start = _LENGTH_BYTES if data.startswith(_CONTINUED) else len(_CONTINUED)
    message = _message(data[start:], 0)
    if message.kind == SCHEMA:
        schema_bytes(message.table, bytes_max=bytes_max)


def schema_bytes(schema: Table, *, bytes_max: int) -> int:
    """Return about what a schema takes; raises `PayloadTooLarge`, `Malformed`."""
    size = _key_values(schema, 2)
    waiting = [schema.tables(1)]
    while waiting:
        field = next(waiting[-1], None)
        if field is None:
            waiting.pop()
            continue
        size += _field_bytes(field)
        if size > bytes_max:
            raise too_large("the schema of a table", size, bytes_max)
        waiting.append(field.tables(5))
    return size


def _field_bytes(field: Table) -> int:
    kind = field.table(3)
    zone = kind.length(1) if kind is not None and field.number(2, "<B") == _TIMESTAMP else 0
    return _FIELD_BYTES + field.length(0) + zone + _key_values(field, 6)


def _key_values(table: Table, slot: int) -> int:
    return sum(_KEY_VALUE_BYTES + one.length(0) + one.length(1) for one in table.tables(slot))


def _message(metadata: bytes, at: int) -> Message:
    root = Table.root(metadata)
    table = root.table(2)
    if table is None:
        raise Malformed("a message says nothing")
    return Message(
        kind=root.number(1, "<B"),
        table=table,
        metadata=metadata,
        at=at,
        body_bytes=root.number(3, "<q"),
    )


def _buffer(source: Any, at: int, size: int, *, is_packed: bool) -> Buffer:
    if not is_packed or not size:
        return Buffer(at=at, size=size, unpacked_bytes=None)
    length = int.from_bytes(source.read_at(_LENGTH_BYTES, at), "little", signed=True)
    if size < _LENGTH_BYTES or length < -1:
        raise Malformed("a packed buffer does not tell its length")
    at, size = at + _LENGTH_BYTES, size - _LENGTH_BYTES
    return Buffer(at=at, size=size, unpacked_bytes=None if length == -1 else length)


def _described_bytes(message: Message, *, bytes_max: int) -> int:
    """Return about what Arrow builds of a message besides its values."""
    own = _key_values(Table.root(message.metadata), 4)
    if message.kind == SCHEMA:
        return own + schema_bytes(message.table, bytes_max=bytes_max)
    return own + _batch(message).length(1) * _COLUMN_BYTES


def _taken_bytes(source: Any, message: Message) -> int:
    return sum(
        buffer.size if buffer.unpacked_bytes is None else buffer.unpacked_bytes
        for buffer in buffers_of(source, message)
    )


def _batch(message: Message) -> Table:
    if message.kind not in (DICTIONARY, BATCH):
        raise Malformed(f"a message is of kind {message.kind}")
    batch: Table | None = message.table.table(1) if message.kind == DICTIONARY else message.table
    if batch is None:
        raise Malformed("a dictionary has no values")
    return batch
