"""Values become those of another type unchanged, or their cast is refused."""

import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from noetl_playbook.model import datasets
from noetl_worker.datasets import exact_casts, file_rows, read_plan, text_casts
from noetl_worker.datasets.address import DatasetAddress, OpenStore
from noetl_worker.datasets.csv_rows import Rejects
from noetl_worker.datasets.file_rows import FileReader
from noetl_worker.datasets.problems import DatasetProblem

CENTS = pa.decimal128(10, 2)


def read(path: Path, **source: Any) -> list[dict[str, Any]]:
    place = DatasetAddress(scheme="file", path=str(path))
    wanted = datasets.parse_source({"path": str(path).lstrip("/"), **source})
    plan = read_plan.build_read_plan(place, wanted, None)
    reader = FileReader(OpenStore(place, None), wanted, plan.format)
    schema = read_plan.decode_schema(plan.schema)
    return [
        row
        for piece in plan.pieces
        for batch in reader.iterate_batches(piece, schema, Rejects())
        for row in batch.to_pylist()
    ]


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        ([0.105], pa.float64(), CENTS),
        ([1e300], pa.float64(), pa.float32()),
        ([True], pa.bool_(), pa.int64()),
        ([True], pa.bool_(), pa.float64()),
        ([5], pa.int64(), pa.bool_()),
        ([0.5], pa.float64(), pa.bool_()),
        (["0xFF"], pa.string(), pa.int8()),
        (["1e400"], pa.string(), pa.float64()),
        (["0xFF"], pa.large_string(), pa.int8()),
        (["340282366920938463463374607431768211457"], pa.string(), pa.decimal128(38, 1)),
        ([[True]], pa.list_(pa.bool_()), pa.list_(pa.int64())),
        ([{"a": 0.105}], pa.struct([("a", pa.float64())]), pa.struct([("a", CENTS)])),
    ],
)
def test_a_cast_that_changes_a_value_is_refused(
    values: list[Any], kind: pa.DataType, wanted: pa.DataType
) -> None:
    with pytest.raises(pa.ArrowInvalid):
        exact_casts.cast_column(pa.array(values, kind), wanted)


@pytest.mark.parametrize(
    ("values", "kind", "wanted", "cast"),
    [
        ([1.1, None, 2.55], pa.float64(), CENTS, [Decimal("1.10"), None, Decimal("2.55")]),
        ([0.5, float("inf")], pa.float64(), pa.float32(), [0.5, float("inf")]),
        ([None], pa.bool_(), pa.int64(), [None]),
        ([1, 0], pa.int64(), pa.bool_(), [True, False]),
        (["0x7F", "-5"], pa.string(), pa.int8(), [127, -5]),
        (["-inf", "1e3"], pa.string(), pa.float64(), [float("-inf"), 1000.0]),
        (["1e2", "0.5"], pa.string(), CENTS, [Decimal(100), Decimal("0.5")]),
        ([[1.5], None], pa.list_(pa.float64()), pa.list_(CENTS), [[Decimal("1.5")], None]),
    ],
)
def test_a_cast_that_keeps_the_values_is_done(
    values: list[Any], kind: pa.DataType, wanted: pa.DataType, cast: list[Any]
) -> None:
    assert exact_casts.cast_column(pa.array(values, kind), wanted).to_pylist() == cast


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0xFFFFFFFFFFFFFFFF", pa.int64()),
        ("0xFF", pa.int8()),
        ("+5", pa.int64()),
        ("1e400", pa.float64()),
        ("-1e400", pa.float32()),
        ("1e300", pa.float32()),
    ],
)
def test_a_text_that_a_number_does_not_hold_does_not_fit(text: str, kind: pa.DataType) -> None:
    texts = pa.array(["0", text, None, "-1"])
    # A single row that does not fit is looked for in another way.
    for rows_max in (None, 1):
        values, unfit = text_casts.cast_texts(texts, kind, rows_max=rows_max)
        assert unfit == [1]
        assert values[1].as_py() is None


@pytest.mark.parametrize(
    ("value", "kind"),
    [("0.105", "DECIMAL(10,2)"), ("1e300", "FLOAT"), ("true", "BIGINT"), ('"0xFF"', "TINYINT")],
)
@pytest.mark.parametrize("name", ["a.ndjson", "a.json"])
def test_a_value_of_json_that_its_column_does_not_hold_is_refused(
    tmp_path: Path, name: str, value: str, kind: str
) -> None:
    path = tmp_path / name
    path.write_text(f'{{"id": {value}}}\n')
    with pytest.raises(DatasetProblem, match=r"a\.n?d?json: column 'id' is .* is wanted: "):
        read(path, schema=f"id {kind}")


def test_a_packed_document_is_as_large_as_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json.gz"
    path.write_bytes(gzip.compress(b'[{"id": 1}' + b" " * 100_000 + b"]"))
    assert read(path) == [{"id": 1}]
    monkeypatch.setattr(file_rows, "_WHOLE_BYTES_MAX", 1000)
    with pytest.raises(DatasetProblem, match=r"a\.json\.gz is one JSON document of more than 1000"):
        read(path)
