"""A file is read within a bounded multiple of its size, in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from noetl_contracts import codec
from noetl_storage.arrow.encoding import PayloadTooLarge
from noetl_worker.tools.tables import file_tables

ROWS = 500_000
_PEAK = """
import resource, sys
from pathlib import Path
from noetl_worker.tools.tables import file_tables
import pyarrow.csv, pyarrow.json, pyarrow.parquet
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
table = file_tables.read_table_file(Path(sys.argv[1]), sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert table.num_rows == int(sys.argv[3])
# Kilobytes on Linux, bytes on macOS.
print((peak - before) * (1 if sys.platform == "darwin" else 1024))
"""


def rows() -> pa.Table:
    return pa.table(
        {
            "id": range(ROWS),
            "name": [
                f"name of the row {at:07d} and some more text behind it" for at in range(ROWS)
            ],
            "share": [at / 7 for at in range(ROWS)],
        }
    )


def write(path: Path, format_: str) -> None:
    table = rows()
    match format_:
        case "parquet":
            pa.parquet.write_table(table, path, compression="none")
        case "csv":
            pa.csv.write_csv(table, path)
        case _:
            with path.open("wb") as file:
                file.writelines(codec.encode_json(row) + b"\n" for row in table.to_pylist())


# The table, and what the reader holds of the text beside it; a decoded row takes far more.
@pytest.mark.parametrize(("format_", "ratio"), [("parquet", 6), ("csv", 7), ("ndjson", 4)])
def test_a_file_is_read_in_bounded_memory(tmp_path: Path, format_: str, ratio: int) -> None:
    path = tmp_path / f"rows.{format_}"
    write(path, format_)
    size = path.stat().st_size
    assert size > 30_000_000
    given = [sys.executable, "-c", _PEAK, str(path), format_, str(ROWS)]
    found = subprocess.run(given, check=True, capture_output=True, text=True)  # noqa: S603 - ours
    assert int(found.stdout) < ratio * size


def lines(path: Path, *given: dict[str, object]) -> Path:
    path.write_bytes(b"".join(codec.encode_json(row) + b"\n" for row in given))
    return path


def test_pieces_are_the_table_that_all_rows_would_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples: list[list[dict[str, object]]] = [
        [{"a": 1 / 3, "b": None}, {"a": 2 / 3, "b": "x"}, {"c": 3, "a": None}],
        [{"a": 1}, {"a": 1 / 3}, {"a": "x"}, {"a": {"b": 1}}],
        [{"a": 12345678901234567890123}, {"a": 1}, {"a": -1}],
        [{"a": {}, "x": 1 / 3}, {"a": {"b": 1}}, {"a": {"c": "x"}}],
        [{"a": [1], "x": 1 / 3}, {"a": []}, {"a": ["x"]}],
    ]
    for at, sample in enumerate(samples):
        path = lines(tmp_path / f"{at}.ndjson", *sample)
        whole = file_tables.read_table_file(path, "ndjson")
        with monkeypatch.context() as patch:
            patch.setattr(file_tables, "_PIECE_ROWS", 1)
            assert file_tables.read_table_file(path, "ndjson").equals(whole), sample


def test_what_must_be_read_as_a_whole_is_refused_beyond_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_tables, "WHOLE_BYTES_MAX", 20)
    monkeypatch.setattr(file_tables, "_PIECE_ROWS", 1)
    whole = tmp_path / "whole.json"
    whole.write_bytes(codec.encode_json([{"a": 1}] * 10))
    unlike = lines(tmp_path / "unlike.ndjson", {"a": 1 / 3}, {"a": "text"})
    for path, way_out in ((whole, "ndjson or Parquet"), (unlike, "name 'types'")):
        with pytest.raises(PayloadTooLarge, match=way_out):
            file_tables.read_json(path, None, is_lines=path is unlike, bytes_max=1_000_000)


def test_lines_are_refused_when_their_table_is_too_large(tmp_path: Path) -> None:
    path = lines(tmp_path / "rows.ndjson", *({"a": at / 7} for at in range(1_000)))
    with pytest.raises(PayloadTooLarge, match="the limit is 6000"):
        file_tables.read_json(path, None, is_lines=True, bytes_max=6_000)
