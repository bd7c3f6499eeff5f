"""A Parquet file is read when it fits its bound, and refused before it has taken the memory."""

import datetime as dt
import decimal
import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support import hostile_tables as hostile
from tests.support.hostile_tables import (
    BY_DICTIONARY,
    BYTE_ARRAY,
    FIXED,
    ZSTD,
    Column,
    Page,
    watched,
)

from noetl_storage.arrow import encoding
from noetl_storage.arrow.encoding import PayloadTooLarge, PayloadUnreadable

MIB = 1024 * 1024
BOUND = 16 * MIB
# What is read to be measured, with what builders grow by, comes on top.
PEAK_MAX = 4 * BOUND
MANY = 100_000_000


def run_of_numbers() -> bytes:
    """Refer to the one number of a dictionary a hundred million times."""
    pages = [
        Page(body=struct.pack("<q", 7), values=1, is_dictionary=True),
        Page(body=b"\x01" + hostile.repeated(0, MANY), values=MANY, encoding=BY_DICTIONARY),
    ]
    return hostile.a_parquet_file(Column(), pages, rows=MANY)


def one_row_of_many() -> bytes:
    """Put a hundred million numbers into the list of one row."""
    repeats = hostile.repeated(0, 1) + hostile.repeated(1, MANY - 1)
    body = struct.pack("<I", len(repeats)) + repeats + hostile.levels(1, MANY)
    pages = [
        Page(body=struct.pack("<q", 7), values=1, is_dictionary=True),
        Page(body=body + b"\x01" + hostile.repeated(0, MANY), values=MANY, encoding=BY_DICTIONARY),
    ]
    return hostile.a_parquet_file(Column(is_list=True), pages, rows=1)


def page_of_nothing() -> bytes:
    """Put one number into a page that unpacks to far more; the summary says a hundred bytes."""
    page = Page(body=bytes(256 * MIB), values=1)
    return hostile.a_parquet_file(Column(), [page], rows=1, codec=ZSTD)


def wide_values() -> bytes:
    """Refer to one value of a hundred thousand bytes, in a column whose width is fixed."""
    pages = [
        Page(body=bytes(100_000), values=1, is_dictionary=True),
        Page(body=b"\x01" + hostile.repeated(0, 10_000), values=10_000, encoding=BY_DICTIONARY),
    ]
    return hostile.a_parquet_file(Column(kind=FIXED, width=100_000), pages, rows=10_000)


def shared_beginnings() -> bytes:
    """Keep every text as what it shares with the one before: all of it."""
    how: dict[str, Any] = {"use_dictionary": False, "column_encoding": {"a": "DELTA_BYTE_ARRAY"}}
    return hostile.repeating_text(100_000, 1_000, **how)


def shared_beginnings_in_lists() -> bytes:
    texts = pa.repeat(pa.scalar("x" * 100_000), 1_000)
    table = pa.table({"a": pa.ListArray.from_arrays([0, 1_000], texts)})
    how: dict[str, Any] = {"use_dictionary": False}
    return hostile.parquet(table, column_encoding={"a.list.element": "DELTA_BYTE_ARRAY"}, **how)


def texts_in_lists() -> bytes:
    texts = pa.repeat(pa.scalar("x" * 1_000), 100_000)
    return hostile.parquet(pa.table({"a": pa.ListArray.from_arrays([0, 100_000], texts)}))


def nothing() -> bytes:
    """Write nulls, which as a table take nothing, and something while they are read."""
    return hostile.parquet(pa.table({"a": pa.nulls(MANY // 4)}), row_group_size=MANY)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "one text": lambda: hostile.repeating_text(1_000, 100_000, groups=10, compression="zstd"),
    "one long text": lambda: hostile.repeating_text(1_000_000, 100),
    "one text in lists": texts_in_lists,
    "one number": run_of_numbers,
    "nulls": nothing,
    "one row": one_row_of_many,
    "one page": page_of_nothing,
    "wide values": wide_values,
    "shared beginnings": shared_beginnings,
    "shared beginnings in lists": shared_beginnings_in_lists,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_small_file_that_takes_much_is_refused_before_it_does(name: str) -> None:
    data = HOSTILE[name]()
    assert len(data) < 200_000
    with watched() as peak, pytest.raises(PayloadTooLarge, match=r"the limit is \d+: store it in"):
        encoding.read_table(data, bytes_max=BOUND)
    assert peak.bytes < PEAK_MAX


@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_no_result_and_no_range_of_groups_either(name: str) -> None:
    data = HOSTILE[name]()
    with watched() as peak:
        with pytest.raises(PayloadUnreadable):
            encoding.decode_payload(data, bytes_max=BOUND)
        with pytest.raises(PayloadTooLarge):
            encoding.RowGroups(data, bytes_max=BOUND).read_groups(0, 1)
    assert peak.bytes < PEAK_MAX


def test_a_bound_is_that_of_all_that_is_read_and_not_of_the_file() -> None:
    table = pa.table({"a": range(MIB)})
    groups = encoding.RowGroups(hostile.parquet(table, groups=4), bytes_max=BOUND)
    assert groups.read_groups(1, 2).equals(table)
    with pytest.raises(PayloadTooLarge):
        groups.read_groups(0, 4)


def test_columns_that_lie_at_the_same_place_are_no_table() -> None:
    page = Page(body=bytes(8000), values=1000)
    sound = hostile.a_parquet_file(Column(), [page], rows=1000)
    assert encoding.read_table(sound).num_rows == 1000
    data = hostile.a_parquet_file(Column(copies=50), [page], rows=1000)
    with pytest.raises(PayloadUnreadable, match="lie in each other"):
        encoding.read_table(data)


def test_a_column_with_two_dictionaries_is_no_table() -> None:
    """By the second one its texts look short, and whoever reads it meets the first one."""
    words = [
        Page(body=struct.pack("<I", size) + bytes(size), values=1, is_dictionary=True)
        for size in (MIB, 1)
    ]
    body = b"\x01" + hostile.repeated(0, 60_000)
    data = Page(body=body, values=60_000, encoding=BY_DICTIONARY)
    column = Column(kind=BYTE_ARRAY)
    sound = hostile.a_parquet_file(column, [words[1], data], rows=60_000)
    assert encoding.read_table(sound, bytes_max=BOUND).num_rows == 60_000
    pages = [words[0], data, words[1], data]
    with watched() as peak, pytest.raises(PayloadUnreadable, match="two dictionaries"):
        encoding.read_table(hostile.a_parquet_file(column, pages, rows=120_000), bytes_max=BOUND)
    assert peak.bytes < MIB


def test_more_rows_than_values_are_no_table() -> None:
    page = Page(body=bytes(80), values=10)
    data = hostile.a_parquet_file(Column(), [page], rows=2**40)
    with watched() as peak, pytest.raises(PayloadUnreadable, match="fewer values than rows"):
        encoding.read_table(data)
    assert peak.bytes < MIB


def test_a_summary_of_very_many_columns_is_refused_before_it_is_built() -> None:
    page = Page(body=bytes(8), values=1)
    data = hostile.a_parquet_file(Column(copies=100_000), [page], rows=1)
    with pytest.raises(PayloadTooLarge, match="fewer row groups"):
        encoding.read_table(data, bytes_max=BOUND)


def test_a_schema_whose_parts_are_shared_is_refused_before_it_is_built() -> None:
    page = Page(body=bytes(8), values=1)
    schema = hostile.schema_of_shared_fields(17, padding=MIB)
    assert pa.ipc.read_schema(pa.py_buffer(schema)).names == ["a"]
    key_values = [hostile.as_parquet_schema(schema)]
    data = hostile.a_parquet_file(Column(), [page], rows=1, key_values=key_values)
    with pytest.raises(PayloadTooLarge, match="schema of a table"):
        encoding.read_table(data, bytes_max=BOUND)


def every_kind(rows: int) -> pa.Table:
    numbers = range(rows)
    day = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    texts = pa.array([None if n % 11 == 0 else f"text {n % 37}" * (n % 5) for n in numbers])
    return pa.table(
        {
            "int8": pa.array([n % 100 for n in numbers], pa.int8()),
            "int64": pa.array([None if n % 3 == 0 else n for n in numbers]),
            "double": pa.array([n / 7 for n in numbers]),
            "half": pa.array([n / 7 for n in numbers], pa.float32()).cast(pa.float16()),
            "bool": pa.array([n % 2 == 0 for n in numbers]),
            "null": pa.nulls(rows),
            "text": texts,
            "large": texts.cast(pa.large_string()),
            "view": texts.cast(pa.string_view()),
            "words": texts.dictionary_encode(),
            "bytes": texts.cast(pa.binary()),
            "fixed": pa.array([b"%05d" % n for n in numbers], pa.binary(5)),
            "decimal": pa.array([decimal.Decimal(n) / 4 for n in numbers], pa.decimal128(20, 2)),
            "wide": pa.array([decimal.Decimal(n) for n in numbers], pa.decimal256(60, 0)),
            "time": pa.array([day + dt.timedelta(seconds=n) for n in numbers]),
            "date": pa.array([day.date() for _ in numbers]),
            "list": pa.array([None if n % 5 == 0 else [str(n)] * (n % 3) for n in numbers]),
            "lists": pa.array([[[n], [], [n, n]][: n % 4] for n in numbers]),
            "pair": pa.array([[n, n + 1] for n in numbers], pa.list_(pa.int32(), 2)),
            "struct": pa.array([{"x": n, "y": {"z": [str(n)]}} for n in numbers]),
            "map": pa.array([[(str(n), n)] for n in numbers], pa.map_(pa.string(), pa.int64())),
            "uuid": pa.array([b"%016d" % n for n in numbers], pa.uuid()),
        },
        metadata={"k": "v"},
    )


FORMS: dict[str, dict[str, Any]] = {
    "as pyarrow does": {},
    "in groups": {"row_group_size": 300},
    "in small pages": {"data_page_size": 512, "row_group_size": 700},
    "newer pages": {"data_page_version": "2.0", "compression": "zstd"},
    "gzip": {"compression": "gzip"},
    "brotli": {"compression": "brotli"},
    "lz4": {"compression": "lz4"},
    "unpacked": {"compression": "none"},
    "plain": {"use_dictionary": False},
    "oldest": {"version": "1.0", "store_schema": False},
}


@pytest.mark.parametrize("how", FORMS)
@pytest.mark.parametrize("rows", [0, 1, 1000])
def test_every_kind_of_column_is_read_as_it_was_written(how: str, rows: int) -> None:
    table = every_kind(1001).slice(1, rows)
    if "version" in FORMS[how]:
        table = table.drop_columns(["half", "map", "uuid", "null"])
    data = hostile.parquet(table, **FORMS[how])
    found = encoding.read_table(data)
    found.validate(full=True)
    assert found.equals(pq.read_table(pa.BufferReader(data)), check_metadata=True)
    if "version" not in FORMS[how]:
        # Of a dictionary only the words that are used come back.
        assert found["words"].cast(pa.string()).equals(table["words"].cast(pa.string()))
        assert found.drop_columns(["words"]).equals(table.drop_columns(["words"]))


ENCODINGS: dict[str, dict[str, Any]] = {
    "dictionary": {},
    "shared": {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
    "lengths": {"use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"},
    "plain": {"use_dictionary": False},
}


def texts_of(form: str, rows: int = 20_000) -> pa.Table:
    texts = pa.array([f"https://example.com/{n % 500:050d}" for n in range(rows)])
    if form == "list":
        return pa.table({"a": pa.ListArray.from_arrays(range(0, rows + 1, 10), texts)})
    if form == "struct":
        return pa.table({"a": pa.StructArray.from_arrays([texts], ["b"])})
    return pa.table({"a": texts})


@pytest.mark.parametrize("encoding_", ENCODINGS)
@pytest.mark.parametrize("form", ["flat", "list", "struct"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_texts_are_counted_as_long_as_they_are(encoding_: str, form: str, version: str) -> None:
    """A bound just above is kept, and one below refused, however the texts are written."""
    table = texts_of(form)
    how = dict(ENCODINGS[encoding_])
    leaf = {"list": "a.list.element", "struct": "a.b"}.get(form, "a")
    if "column_encoding" in how:
        how["column_encoding"] = {leaf: how["column_encoding"]}
    data = hostile.parquet(table, data_page_version=version, row_group_size=600, **how)
    size = table.nbytes
    assert encoding.read_table(data, bytes_max=int(size * 1.25)).equals(table)
    with pytest.raises(PayloadTooLarge):
        encoding.read_table(data, bytes_max=int(size * 0.75))
