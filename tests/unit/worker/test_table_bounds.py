"""Tables that a worker reads out of contents, files and queries: none takes more than its bound."""

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from tests.support import hostile_tables as hostile
from tests.support.hostile_tables import watched

from noetl_storage.arrow import encoding, row_tables
from noetl_storage.arrow.encoding import PARQUET_MEDIA_TYPE, PayloadTooLarge
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.tools.duckdb import inputs
from noetl_worker.tools.duckdb.inputs import InputReader
from noetl_worker.tools.tables import contents, csv_table, file_tables
from noetl_worker.tools.tables.contents import Content

MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "BYTES_MAX", 16 * MIB)
    monkeypatch.setattr(file_tables, "BYTES_MAX", 16 * MIB)


def repeated(rows: int) -> pa.Table:
    return pa.table({"a": pa.repeat(pa.scalar("x" * 1000), rows)})


def one_word(rows: int) -> pa.Table:
    places = pa.repeat(pa.scalar(0, pa.int8()), rows)
    return pa.table({"a": pa.DictionaryArray.from_arrays(places, ["x" * 100_000])})


CONTENTS = {
    "parquet": lambda: hostile.parquet(repeated(100_000), groups=3, compression="zstd"),
    "a dictionary in parquet": lambda: hostile.parquet(one_word(1000)),
    "arrow": lambda: hostile.stream(repeated(100_000), compression="zstd"),
    "a dictionary in arrow": lambda: hostile.stream(one_word(1000)),
    "packed parquet": lambda: encoding.compress_bytes(hostile.parquet(repeated(100_000)), "gzip"),
    "packed csv": lambda: encoding.compress_bytes(b"a\n" + b"1\n" * 2 * MIB, "zstd"),
    "packed text": lambda: encoding.compress_bytes(b"1" * 17 * MIB, "zstd"),
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("is_told", [True, False])
def test_a_small_content_that_takes_much_is_refused_before_it_does(
    name: str, *, is_told: bool
) -> None:
    data = CONTENTS[name]()
    assert len(data) < 2 * MIB
    format_ = name.rpartition(" ")[2]
    suffix = "txt" if format_ == "text" else format_
    content = Content(data=data, media_type="application/octet-stream")
    with watched() as peak, pytest.raises(ToolFailure) as found:
        contents.decode_content(
            content, format_=format_ if is_told else None, name=f"http://x/y.{suffix}"
        )
    assert found.value.error.kind == "payload_too_large"
    assert "the limit is 16777216" in found.value.error.message
    assert peak.bytes < 64 * MIB


def test_contents_within_the_bound_are_read() -> None:
    table = pa.table({"a": ["x", None], "b": pa.array(["y", "y"]).dictionary_encode()})
    for data in (hostile.parquet(table), hostile.stream(table, compression="lz4")):
        content = Content(data=data, media_type=PARQUET_MEDIA_TYPE)
        found, _ = contents.decode_content(
            content, format_="parquet" if data.startswith(b"PAR1") else "arrow", name="t"
        )
        assert found["rows"] == [{"a": "x", "b": "y"}, {"a": None, "b": "y"}]
    with pytest.raises(ToolFailure, match="does not read as parquet"):
        contents.decode_content(
            Content(data=b"junk", media_type=PARQUET_MEDIA_TYPE), format_=None, name="t"
        )


def test_a_small_file_that_takes_much_is_refused_before_it_does(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(hostile.parquet(repeated(100_000), groups=5, compression="zstd"))
    with watched() as peak, pytest.raises(ToolFailure, match=r"t\.parquet: .*the limit") as found:
        file_tables.read_table_file(path, "parquet", bytes_max=16 * MIB)
    assert found.value.error.kind == "payload_too_large"
    assert peak.bytes < 64 * MIB
    assert file_tables.read_table_file(path, "parquet", bytes_max=600 * MIB).num_rows == 500_000


def test_files_are_read_as_they_were_written(tmp_path: Path) -> None:
    table = pa.table({"a": range(1000), "w": pa.array(["x"] * 1000).dictionary_encode()})
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(table, path)
    assert file_tables.read_table_file(path, "parquet").equals(table)
    path.write_bytes(b"junk")
    for format_, kind in (("parquet", "parse"), ("xml", "config")):
        with pytest.raises(ToolFailure) as found:
            file_tables.read_table_file(path, format_)
        assert found.value.error.kind == kind
    with pytest.raises(ToolFailure) as found:
        file_tables.read_table_file(tmp_path / "none.parquet", "parquet")
    assert found.value.error.kind == "not_found"


def csv_of(text: bytes, *, bytes_max: int) -> pa.Table:
    return csv_table.read_csv(lambda: io.BytesIO(text), len(text), bytes_max=bytes_max)


@pytest.mark.parametrize("end", ["", "7,x,\n", "7.5,x,1\n", "a,b,c\n", '"7","x, y",\n'])
def test_csv_has_the_same_types_block_by_block_as_in_one(end: str) -> None:
    text = ("n,t,u\n" + "".join(f"{n},word {n % 9},\n" for n in range(200_000)) + end).encode()
    found = csv_of(text, bytes_max=16 * MIB)
    assert found.equals(pyarrow.csv.read_csv(io.BytesIO(text)))


def test_csv_stops_at_the_bound_and_so_does_what_cannot_be_read_by_blocks() -> None:
    commas = b"a" + b",b" * 9 + b"\n1" + b",1" * 9 + b"\n" + (b"," * 9 + b"\n") * 2_000_000
    with watched() as peak, pytest.raises(PayloadTooLarge, match="a table takes at least"):
        csv_of(commas, bytes_max=8 * MIB)
    assert peak.bytes < 64 * MIB
    changing = b"a\n" + b"0.1234567890123\n" * 100_000 + b"x\n"
    with pytest.raises(PayloadTooLarge, match="block by block"):
        csv_of(changing, bytes_max=MIB)


def test_json_that_is_far_longer_than_a_table_may_be_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "t.ndjson"
    path.write_bytes(b'{"a": 1}\n' * 10)
    assert file_tables.read_table_file(path, "ndjson").num_rows == 10
    with pytest.raises(ToolFailure) as found:
        file_tables.read_table_file(path, "ndjson", bytes_max=10)
    assert found.value.error.kind == "payload_too_large"


Windows = list[tuple[tuple[str, ...], list[dict[str, Any]]]]


class Served:
    """A reader of inputs whose queries and references give what a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, windows: Windows) -> None:
        self.given = 0
        self._windows = windows
        monkeypatch.setattr(inputs, "read_query_windows", self._query)
        elsewhere = SimpleNamespace(open_table=None)
        references: Any = SimpleNamespace(load_part=self._part)
        nothing: Any = elsewhere
        self._reader = InputReader(
            references_=references, postgres=nothing, in_place=nothing, datasets_=nothing
        )

    async def _query(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        for window in self._windows:
            self.given += 1
            yield *window, {}

    async def _part(self, part: Any, _: Any) -> Any:
        self.given += 1
        return part

    def read(self, source: Any) -> pa.Table:
        call: Any = SimpleNamespace(site=None)
        found: dict[str, Any] = asyncio.run(self._reader.read_inputs({"o": source}, call))
        table: pa.Table = found["o"]
        return table


QUERY = {"auth": "db", "query": "select"}


def test_a_query_stops_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    window = [{"a": "x" * 1000} for _ in range(1000)]
    served = Served(monkeypatch, [(("a",), window)] * 100)
    with pytest.raises(ToolFailure, match="the inputs up to 'o' exceed") as found:
        served.read(QUERY)
    assert found.value.error.kind == "payload_too_large"
    assert served.given == 17


def test_parts_stop_at_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    part = {"columns": ["a"], "rows": [{"a": "x" * 1000} for _ in range(1000)]}
    served = Served(monkeypatch, [])
    with pytest.raises(ToolFailure, match="the inputs up to 'o' exceed"):
        served.read([part] * 100)
    assert served.given == 17


PIECES: dict[str, list[list[Any]]] = {
    "alike": [[1, 2], [3, None], [4]],
    "none at first": [[None, None], [1]],
    "none at all": [[None], []],
    "empty": [[]],
    "mixed": [[1, 2], ["x"], [{"a": 1}]],
    "wider": [[1], [2.5, 3]],
    "mappings": [[{"a": 1}], [{"a": 2, "b": "x"}]],
    "lists": [[[1]], [[]], [["x"]]],
    "large": [[2**70], [1]],
}


@pytest.mark.parametrize("name", PIECES)
def test_rows_that_come_in_windows_make_the_table_that_they_make_at_once(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    windows = [(("a", "n"), [{"a": item, "n": 1} for item in piece]) for piece in PIECES[name]]
    at_once = row_tables.build_table([row for _, rows in windows for row in rows], ["a", "n"])
    assert Served(monkeypatch, windows).read(QUERY).equals(at_once)


def test_parts_lie_below_each_other_whatever_their_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        {"columns": ["a"], "rows": [{"a": 1}]},
        {"columns": ["b", "a"], "rows": [{"b": "x", "a": 2}]},
        {"columns": ["a"], "rows": []},
    ]
    found = Served(monkeypatch, []).read(parts)
    assert found.column_names == ["a", "b", "_part"]
    assert found.to_pylist() == [
        {"a": 1, "b": None, "_part": 0},
        {"a": 2, "b": "x", "_part": 1},
    ]
