"""An Arrow stream is read when it fits its bound, and so are the rows that a table becomes."""

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from tests.support import hostile_tables as hostile
from tests.support.hostile_tables import watched

from noetl_contracts import codec
from noetl_storage.arrow import encoding
from noetl_storage.arrow.encoding import PayloadTooLarge, PayloadUnreadable

MIB = 1024 * 1024
BOUND = 16 * MIB
PEAK_MAX = 2 * BOUND


def packed_numbers() -> bytes:
    return hostile.stream(pa.table({"a": pa.repeat(pa.scalar(0), 16 * MIB)}), compression="zstd")


def packed_texts() -> bytes:
    texts = pa.repeat(pa.scalar("x" * 1000), 200_000)
    return hostile.stream(pa.table({"a": texts}), compression="zstd")


def packed_dictionary() -> bytes:
    words = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["x" * (64 * MIB)]))
    return hostile.stream(pa.table({"a": words}), compression="zstd")


def a_lie() -> bytes:
    """Say of a few packed bytes that they are a hundred gigabytes."""
    data = hostile.stream(pa.table({"a": pa.array([0] * 1000)}), compression="zstd")
    place = data.index(struct.pack("<q", 8000))
    return data[:place] + struct.pack("<q", 100_000 * MIB) + data[place + 8 :]


def growing_dictionaries() -> bytes:
    """Add a word to a long dictionary again and again: each batch holds on to its own."""
    words = ["x" * MIB]
    sink = pa.BufferOutputStream()
    kind = pa.dictionary(pa.int32(), pa.string())
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, pa.schema({"a": kind}), options=options) as writer:
        for count in range(40):
            words.append(str(count))
            column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(words))
            writer.write_batch(pa.record_batch({"a": column}))
    return bytes(sink.getvalue().to_pybytes())


HOSTILE: dict[str, Callable[[], bytes]] = {
    "packed numbers": packed_numbers,
    "packed texts": packed_texts,
    "packed dictionary": packed_dictionary,
    "a lie": a_lie,
    "growing dictionaries": growing_dictionaries,
    "shared fields": lambda: hostile.schema_of_shared_fields(17, padding=MIB),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_stream_that_takes_much_is_refused_before_it_does(name: str) -> None:
    data = HOSTILE[name]()
    assert len(data) < 2 * MIB
    with watched() as peak:
        with pytest.raises(PayloadTooLarge, match=r"the limit is \d+: store it in"):
            encoding.read_table(data, bytes_max=BOUND)
        with pytest.raises(PayloadTooLarge):
            encoding.RowGroups(data, bytes_max=BOUND)
        with pytest.raises(PayloadUnreadable):
            encoding.decode_payload(data, bytes_max=BOUND)
    assert peak.bytes < PEAK_MAX


@pytest.mark.parametrize("compression", [None, "zstd", "lz4"])
def test_a_stream_within_its_bound_is_read_as_it_was_written(compression: str | None) -> None:
    words = pa.array([f"word {n % 7}" for n in range(10_000)])
    table = pa.table(
        {
            "n": range(10_000),
            "words": words,
            "dictionary": words.dictionary_encode(),
            "list": pa.ListArray.from_arrays(range(0, 10_001, 1), words),
            "view": words.cast(pa.string_view()),
            "nothing": pa.nulls(10_000),
        },
        metadata={"k": "v"},
    )
    for item in (table, table.slice(0, 0), table.slice(5, 1)):
        data = hostile.stream(item, compression=compression)
        found = encoding.read_table(data, bytes_max=max(MIB, 2 * item.nbytes))
        assert found.equals(item, check_metadata=True)


def test_what_is_not_packed_may_be_as_long_as_it_lies_there() -> None:
    table = pa.table({"a": range(100_000)})
    assert encoding.read_table(hostile.stream(table), bytes_max=1000).equals(table)
    with pytest.raises(PayloadTooLarge):
        encoding.read_table(hostile.stream(table, compression="zstd"), bytes_max=1000)


def test_a_packed_payload_that_is_too_long_says_so() -> None:
    data = encoding.compress_bytes(b" " * 1000, "zstd")
    with pytest.raises(PayloadTooLarge, match="packed as zstd, takes at least 101 bytes unpacked"):
        encoding.decode_payload(data, bytes_max=100)


def a_result(columns: dict[str, Any]) -> bytes:
    """Write a table as the result of a step, whatever its columns are."""
    about = {
        b"noetl.kept": codec.encode_json({"rows": []}),
        b"noetl.path": codec.encode_json([]),
        b"noetl.shape": b"mappings",
    }
    return hostile.stream(pa.table(columns).replace_schema_metadata(about))


def views_of_one_text() -> pa.Array:
    # A short text stands in its view; a long one is referred to, here by every row.
    view = struct.pack("<i4sii", 100_000, b"xxxx", 0, 0)
    buffers = [None, pa.py_buffer(view * 1000), pa.py_buffer(b"x" * 100_000)]
    return pa.Array.from_buffers(pa.string_view(), 1000, buffers)


MANY = 1_000_000
ROWS: dict[str, Callable[[], dict[str, Any]]] = {
    "one word": lambda: {
        "a": pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0), 1000), ["x" * 100_000])
    },
    "one list of words": lambda: {
        "a": pa.ListArray.from_arrays(
            [0, 1000],
            pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0), 1000), ["x" * 100_000]),
        )
    },
    "one view": lambda: {"a": views_of_one_text()},
    "one run": lambda: {"a": pa.RunEndEncodedArray.from_arrays([1000], ["x" * 100_000])},
    "one list seen often": lambda: {
        "a": pa.ListViewArray.from_arrays(
            pa.repeat(pa.scalar(0, pa.int32()), 5000),
            pa.repeat(pa.scalar(5000, pa.int32()), 5000),
            pa.array(range(5000)),
        )
    },
    "nulls": lambda: {"a": pa.nulls(2 * MANY)},
    "truths": lambda: {"a": pa.array([True] * 2 * MANY)},
    "a list of nulls": lambda: {"a": pa.ListArray.from_arrays([0, 3 * MANY], pa.nulls(3 * MANY))},
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_that_take_more_than_their_table_are_refused_before_they_are_made(name: str) -> None:
    data = a_result(ROWS[name]())
    assert len(data) < MIB
    with watched() as peak, pytest.raises(PayloadTooLarge, match="a table, as rows,"):
        encoding.decode_payload(data, bytes_max=BOUND)
    assert peak.bytes < PEAK_MAX


def test_rows_weigh_their_values_and_at_least_a_place_each() -> None:
    texts = pa.array(["ab", None, "abcd"])
    assert encoding.weigh_rows(pa.table({"n": [1, 2, 3]})) == 3 * 16
    assert encoding.weigh_rows(pa.table({"t": texts})) == 3 * 16 + 6
    assert encoding.weigh_rows(pa.table({"t": texts.dictionary_encode()})) == 3 * 16 + 6
    assert encoding.weigh_rows(pa.table({"t": texts.cast(pa.string_view())}).slice(2)) == 16 + 4
    lists = pa.array([["ab"], None, ["a", "bcd"]])
    assert encoding.weigh_rows(pa.table({"l": lists})) == 3 * 16 + 3 * 8 + 6
    assert encoding.weigh_rows(pa.table({"l": lists}).slice(2)) == 16 + 2 * 8 + 4
    pairs = pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64()))
    assert encoding.weigh_rows(pa.table({"m": pairs})) == 2 * 16 + 8 + 9 + 8
    assert encoding.weigh_rows(pa.table({"s": pa.array([{"x": 1, "y": "ab"}])})) == 16 + 8 + 10
    assert encoding.weigh_rows(pa.table({"n": pa.array([], pa.int64())})) == 0


def test_a_result_within_its_bound_is_read() -> None:
    rows = {"a": pa.array(["x", None]), "b": pa.array(["x", "y"]).dictionary_encode()}
    assert encoding.decode_payload(a_result(rows), bytes_max=100) == {
        "rows": [{"a": "x", "b": "x"}, {"a": None, "b": "y"}]
    }
