"""Messages of Arrow's streams: flatbuffers tables, buffers, and the size that they unpack to."""

import struct
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from noetl_storage.size_limits.refusals import MalformedBytes, build_too_large_error

_REFERENCE_BYTES = 4
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


class FlatTable:
    """A table in bytes; what is absent reads as zero, none or empty. Raises `MalformedBytes`.

    Several tables may share what they refer to: a walk over all tables counts it each time.
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at

    @classmethod
    def read_root(cls, data: bytes) -> "FlatTable":
        """Return the table that all others hang on."""
        return cls(data, _unpack_number(data, 0, "<I"))

    def read_number(self, slot: int, form: str) -> int:
        """Return a number; `form` is its form in `struct`."""
        at = self._find_place(slot)
        return 0 if at is None else _unpack_number(self._data, at, form)

    def find_table(self, slot: int) -> "FlatTable | None":
        """Return a table that this one refers to."""
        at = self._find_referred(slot)
        return None if at is None else FlatTable(self._data, at)

    def read_length(self, slot: int) -> int:
        """Return the length of a text or list, in bytes or elements."""
        at = self._find_referred(slot)
        return 0 if at is None else _unpack_number(self._data, at, "<I")

    def iterate_tables(self, slot: int) -> Iterator["FlatTable"]:
        """Yield the tables of a list."""
        at = self._find_referred(slot)
        for index in range(self.read_length(slot)):
            assert at is not None, "what is absent has no length"
            place = at + _REFERENCE_BYTES * (index + 1)
            yield FlatTable(self._data, place + _unpack_number(self._data, place, "<I"))

    def read_numbers(self, slot: int, numbers_per_item: int) -> tuple[int, ...]:
        """Return a list of structures of so many long numbers, laid side by side."""
        at = self._find_referred(slot)
        if at is None:
            return ()
        count = _unpack_number(self._data, at, "<I") * numbers_per_item
        if at + _REFERENCE_BYTES + 8 * count > len(self._data):
            raise MalformedBytes("a list ends behind its message")
        return struct.unpack_from(f"<{count}q", self._data, at + _REFERENCE_BYTES)

    def _find_referred(self, slot: int) -> int | None:
        at = self._find_place(slot)
        return None if at is None else at + _unpack_number(self._data, at, "<I")

    def _find_place(self, slot: int) -> int | None:
        fields = self._at - _unpack_number(self._data, self._at, "<i")
        place = 4 + 2 * slot
        if place >= _unpack_number(self._data, fields, "<H"):
            return None
        distance = _unpack_number(self._data, fields + place, "<H")
        return self._at + distance if distance else None


def _unpack_number(data: bytes, at: int, form: str) -> int:
    if at < 0:
        raise MalformedBytes("a description points before its message")
    try:
        number: int = struct.unpack_from(form, data, at)[0]
    except struct.error as failure:
        raise MalformedBytes("a description points behind its message") from failure
    return number


class IpcMessage(Struct, frozen=True, kw_only=True):
    """A message: its kind, its description, and where its body lies."""

    kind: int
    table: Any
    metadata: bytes
    at: int
    body_bytes: int


class IpcBuffer(Struct, frozen=True, kw_only=True):
    """A buffer of a batch; `unpacked_bytes` is what it says that it takes, None as it lies."""

    at: int
    size: int
    unpacked_bytes: int | None


def iterate_messages(source: Any) -> Iterator[IpcMessage]:
    """Yield the messages up to the end of the stream; raises `MalformedBytes`."""
    at, end = 0, source.size()
    while (head := source.read_at(_LENGTH_BYTES, at)) and len(head) >= len(_CONTINUED):
        is_new = head.startswith(_CONTINUED)
        length = int.from_bytes(head[4:] if is_new else head[:4], "little", signed=True)
        at += _LENGTH_BYTES if is_new else len(_CONTINUED)
        if length == 0:
            return
        if length < 0 or at + length > end:
            raise MalformedBytes("a message has no length")
        message = _read_message(source.read_at(length, at), at + length)
        at = message.at + message.body_bytes
        if message.body_bytes < 0 or at > end:
            raise MalformedBytes("a message ends behind the stream")
        yield message


def iterate_buffers(source: Any, message: IpcMessage) -> Iterator[IpcBuffer]:
    """Yield the buffers of a batch or dictionary; raises `MalformedBytes`."""
    has_lengths = has_packed_buffers(message)
    numbers = _get_batch(message).read_numbers(2, 2)
    for offset, size in zip(numbers[::2], numbers[1::2], strict=True):
        if offset < 0 or size < 0 or offset + size > message.body_bytes:
            raise MalformedBytes("a buffer lies outside of its message")
        yield _read_buffer(source, message.at + offset, size, is_packed=has_lengths)


def has_packed_buffers(message: IpcMessage) -> bool:
    """Tell whether the buffers of a batch or dictionary are packed; raises `MalformedBytes`."""
    return _get_batch(message).find_table(3) is not None or _OLD_PACKING in message.metadata


def check_stream_size(source: Any, *, bytes_max: int) -> None:
    """Refuse a stream that takes more than a bound; raises `PayloadTooLarge`, `MalformedBytes`.

    What is not packed may be as long as it lies there.
    """
    content_bytes_max, description_bytes_max = (
        max(bytes_max, source.size()),
        max(bytes_max, DESCRIBED_BYTES_MIN),
    )
    content_bytes = description_bytes = 0
    dictionary_bytes: dict[int, int] = {}
    for message in iterate_messages(source):
        description_bytes += _count_described_bytes(message, bytes_max=description_bytes_max)
        if description_bytes > description_bytes_max:
            raise build_too_large_error(
                "what describes an Arrow stream", description_bytes, description_bytes_max
            )
        if message.kind == SCHEMA:
            continue
        message_bytes = _count_taken_bytes(source, message)
        if message.kind == DICTIONARY:
            number = message.table.read_number(0, "<q")
            # What is added to a dictionary makes a new one of all: batches hold on to the old.
            message_bytes += (
                dictionary_bytes.get(number, 0) if message.table.read_number(2, "<B") else 0
            )
            dictionary_bytes[number] = message_bytes
        content_bytes += message_bytes
        if content_bytes > content_bytes_max:
            raise build_too_large_error("an Arrow stream", content_bytes, content_bytes_max)


def check_schema_size(data: bytes, *, bytes_max: int) -> None:
    """Refuse a schema that becomes too much; raises `PayloadTooLarge`, `MalformedBytes`."""
    start = _LENGTH_BYTES if data.startswith(_CONTINUED) else len(_CONTINUED)
    message = _read_message(data[start:], 0)
    if message.kind == SCHEMA:
        count_schema_bytes(message.table, bytes_max=bytes_max)


def count_schema_bytes(schema: FlatTable, *, bytes_max: int) -> int:
    """Return about what a schema takes; raises `PayloadTooLarge`, `MalformedBytes`."""
    size = _count_key_value_bytes(schema, 2)
    open_levels = [schema.iterate_tables(1)]
    while open_levels:
        field = next(open_levels[-1], None)
        if field is None:
            open_levels.pop()
            continue
        size += _count_field_bytes(field)
        if size > bytes_max:
            raise build_too_large_error("the schema of a table", size, bytes_max)
        open_levels.append(field.iterate_tables(5))
    return size


def _count_field_bytes(field: FlatTable) -> int:
    kind = field.find_table(3)
    zone = (
        kind.read_length(1) if kind is not None and field.read_number(2, "<B") == _TIMESTAMP else 0
    )
    return _FIELD_BYTES + field.read_length(0) + zone + _count_key_value_bytes(field, 6)


def _count_key_value_bytes(table: FlatTable, slot: int) -> int:
    return sum(
        _KEY_VALUE_BYTES + flat_table.read_length(0) + flat_table.read_length(1)
        for flat_table in table.iterate_tables(slot)
    )


def _read_message(metadata: bytes, at: int) -> IpcMessage:
    root = FlatTable.read_root(metadata)
    table = root.find_table(2)
    if table is None:
        raise MalformedBytes("a message says nothing")
    return IpcMessage(
        kind=root.read_number(1, "<B"),
        table=table,
        metadata=metadata,
        at=at,
        body_bytes=root.read_number(3, "<q"),
    )


def _read_buffer(source: Any, at: int, size: int, *, is_packed: bool) -> IpcBuffer:
    if not is_packed or not size:
        return IpcBuffer(at=at, size=size, unpacked_bytes=None)
    length = int.from_bytes(source.read_at(_LENGTH_BYTES, at), "little", signed=True)
    if size < _LENGTH_BYTES or length < -1:
        raise MalformedBytes("a packed buffer does not tell its length")
    at, size = at + _LENGTH_BYTES, size - _LENGTH_BYTES
    return IpcBuffer(at=at, size=size, unpacked_bytes=None if length == -1 else length)


def _count_described_bytes(message: IpcMessage, *, bytes_max: int) -> int:
    """Return about what Arrow builds of a message besides its values."""
    value_bytes = _count_key_value_bytes(FlatTable.read_root(message.metadata), 4)
    if message.kind == SCHEMA:
        return value_bytes + count_schema_bytes(message.table, bytes_max=bytes_max)
    return value_bytes + _get_batch(message).read_length(1) * _COLUMN_BYTES


def _count_taken_bytes(source: Any, message: IpcMessage) -> int:
    return sum(
        buffer.size if buffer.unpacked_bytes is None else buffer.unpacked_bytes
        for buffer in iterate_buffers(source, message)
    )


def _get_batch(message: IpcMessage) -> FlatTable:
    if message.kind not in (DICTIONARY, BATCH):
        raise MalformedBytes(f"a message is of kind {message.kind}")
    batch: FlatTable | None = (
        message.table.find_table(1) if message.kind == DICTIONARY else message.table
    )
    if batch is None:
        raise MalformedBytes("a dictionary has no values")
    return batch
