"""The summary at the end of a Parquet file, before anything is built of it.

What it lists becomes objects many times as large as their descriptions, so they are counted first.
"""

import binascii
from typing import Any

from noetl_storage.unpacking import ipc_messages
from noetl_storage.unpacking.refusals import Malformed, PayloadTooLarge
from noetl_storage.unpacking.thrift import BINARY, LIST, STRUCT, Compact, TooMany

_MAGIC = b"PAR1"
_TAIL_BYTES = 8
_KEY_VALUES = 5
_ARROW_SCHEMA = b"ARROW:schema"
# What Parquet's reader builds of a description takes about so much, one with another.
_THING_BYTES = 128
_THINGS_MIN = 200_000


def footer_of(source: Any) -> bytes:
    """Return the summary as it lies in the file; raises `Malformed`."""
    size = source.size()
    tail = source.read_at(_TAIL_BYTES, max(0, size - _TAIL_BYTES))
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or length + _TAIL_BYTES > size:
        raise Malformed("the bytes do not end as Parquet does")
    found: bytes = source.read_at(length, size - _TAIL_BYTES - length)
    return found


def check(source: Any, *, bytes_max: int) -> None:
    """Refuse a summary that becomes too much; raises `PayloadTooLarge`, `Malformed`."""
    things_max = max(_THINGS_MIN, bytes_max // _THING_BYTES)
    reader = Compact(footer_of(source), things_max=things_max)
    try:
        for number, kind in reader.fields():
            if number == _KEY_VALUES and kind == LIST:
                _check_key_values(
                    reader, bytes_max=max(bytes_max, ipc_messages.DESCRIBED_BYTES_MIN)
                )
            else:
                reader.skip(kind)
    except IndexError as failure:
        raise Malformed("the summary of a Parquet file is cut off") from failure
    except TooMany as failure:
        raise PayloadTooLarge(
            f"the summary of a Parquet file describes more than {things_max} columns of row "
            "groups and the like: write it in fewer row groups"
        ) from failure


def _check_key_values(reader: Compact, *, bytes_max: int) -> None:
    count, kind = reader.elements()
    if kind != STRUCT:
        raise Malformed("the summary of a Parquet file has keys and values that are none")
    for _ in range(count):
        texts: dict[int, bytes] = {}
        for number, inner in reader.fields():
            if inner == BINARY:
                texts[number] = reader.binary()
            else:
                reader.skip(inner)
        if texts.get(1) == _ARROW_SCHEMA:
            _check_schema(texts.get(2, b""), bytes_max=bytes_max)


def _check_schema(text: bytes, *, bytes_max: int) -> None:
    """Count the fields of the table that was written; raises `PayloadTooLarge`, `Malformed`."""
    try:
        data = binascii.a2b_base64(text)
    except binascii.Error as failure:
        raise Malformed("the schema in a Parquet file is no base64") from failure
    ipc_messages.check_schema(data, bytes_max=bytes_max)
