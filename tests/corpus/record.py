"""Records the corpus of the serialization contract; what is there already is never rewritten.

Run `python -m tests.corpus.record` after adding a table or a value.
"""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from noetl_contracts import codec
from noetl_storage.arrow.encoding import digest_schema

HERE = Path(__file__).parent
TABLES = HERE / "tables"
DIGESTS = HERE / "digests.json"
VALUES = HERE / "values.jsonl"

LAST = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC).replace(tzinfo=None)
MOMENT = datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)


def tables() -> dict[str, pa.Table]:
    """Every kind of column that results may have."""
    ns = pa.array([1_770_091_506_789_012_345, None, -1], pa.int64())
    nested = pa.struct(
        [
            ("name", pa.large_string()),
            ("at", pa.timestamp("us", "UTC")),
            ("n", pa.list_(pa.int32())),
        ]
    )
    return {
        "scalars": pa.table(
            {
                "flag": pa.array([True, False, None]),
                "small": pa.array([-128, 127, None], pa.int8()),
                "large": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
                "unsigned": pa.array([0, 2**64 - 1, None], pa.uint64()),
                "half": pa.array([0.1, -1.5e300, None], pa.float64()),
                "text": pa.array(["", "ä\U0001f600\u2028", None], pa.string()),
                "bytes": pa.array([b"", b"\x00\xff", None], pa.binary()),
            }
        ),
        "decimals": pa.table(
            {
                "money": pa.array(
                    [Decimal("0.10"), Decimal("-99999999.99"), None], pa.decimal128(10, 2)
                ),
                "wide": pa.array(
                    [Decimal("1E-10"), Decimal(10**27) + Decimal("0.0000000001"), None],
                    pa.decimal128(38, 10),
                ),
                "whole": pa.array([Decimal(1), Decimal(-1), None], pa.decimal128(5, 0)),
            }
        ),
        "moments": pa.table(
            {
                "utc_us": pa.array(
                    [MOMENT, datetime(1, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")
                ),
                "utc_ms": pa.array(
                    [MOMENT.replace(microsecond=0), None, MOMENT.replace(microsecond=0)],
                    pa.timestamp("ms", "UTC"),
                ),
                "plain_us": pa.array([MOMENT.replace(tzinfo=None), None, LAST], pa.timestamp("us")),
                "plain_ns": ns.cast(pa.timestamp("ns")),
                "day": pa.array([date(2026, 2, 3), None, date(1969, 12, 31)], pa.date32()),
                "clock": pa.array([time(4, 5, 6, 789012), None, time(0)], pa.time64("us")),
            }
        ),
        "nested": pa.table(
            {
                "who": pa.array(
                    [
                        {"name": "a", "at": MOMENT, "n": [1, None, 3]},
                        {"name": None, "at": None, "n": []},
                        None,
                    ],
                    nested,
                ),
                "list": pa.array([["x", None, ""], [], None], pa.list_(pa.string())),
                "deep": pa.array(
                    [[[{"name": "b", "at": None, "n": None}]], [None], None],
                    pa.list_(pa.list_(nested)),
                ),
                "pairs": pa.array(
                    [[("k", 1), ("l", None)], [], None], pa.map_(pa.string(), pa.int64())
                ),
            }
        ),
        "nulls": pa.table({"nothing": pa.nulls(3), "typed": pa.nulls(3, pa.int64())}),
        "empty": pa.table({"i": pa.array([], pa.int64()), "s": pa.array([], pa.large_string())}),
        "dictionaries": pa.table(
            {
                "color": pa.array(["red", "blue", None, "red"]).dictionary_encode(),
                "code": pa.DictionaryArray.from_arrays(
                    pa.array([1, 0, 1, None], pa.int8()), pa.array(["a", "b"])
                ),
            }
        ),
        "large-strings": pa.table(
            {"s": pa.array(["x" * 70_000, "", None, "ä" * 300], pa.large_string())}
        ),
        "batches": pa.concat_tables([pa.table({"i": [n, n + 1]}) for n in range(0, 6, 2)]),
    }


def values() -> list[Any]:
    """Values whose canonical form is easily got wrong."""
    return [
        None,
        True,
        [],
        {},
        {"b": 1, "a": 2, "B": 3, "": 4},
        {"\uffff": 1, "\U00010000": 2, "é": 3, "e": 4},
        {"z": {"y": [{"x": None, "a": '\\ " / \b\f\n\r\t\x00\x1f\x7f \u2028'}]}},
        [0, -1, 2**53 + 1, 2**63 - 1, 2**64 - 1, -(2**63)],
        [0.1, 1.0, -0.0, 1e16, 1e-7, 5e-324, 1.7976931348623157e308, 123456789.123],
        {"text": "ä\U0001f600 </script>", "10": 1, "9": 2},
        MOMENT,
        {"at": datetime(2026, 1, 1, tzinfo=UTC)},
    ]


def written(table: pa.Table) -> bytes:
    """Write a table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def comparable(table: pa.Table) -> pa.Table:
    """Turn what Python's values cannot hold into numbers, and dictionaries into what they say."""
    columns = []
    for column in table.columns:
        kind = column.type
        if pa.types.is_timestamp(kind) and kind.unit == "ns":
            columns.append(column.cast(pa.int64()))
        elif pa.types.is_dictionary(kind):
            columns.append(column.cast(kind.value_type))
        else:
            columns.append(column)
    return pa.table(dict(zip(table.column_names, columns, strict=True)))


def plain(value: Any) -> Any:
    """Write a value as JSON can."""
    match value:
        case dict():
            return {name: plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case bytes():
            return value.hex()
        case datetime():
            return (value.astimezone(UTC) if value.tzinfo else value).isoformat()
        case Decimal() | date() | time():
            return str(value)
        case float():
            return repr(value)
        case _:
            return value


def checksum(table: pa.Table) -> str:
    """Fingerprint what a table says, whoever read it."""
    return codec.compute_checksum([plain(row) for row in comparable(table).to_pylist()])


def main() -> None:
    """Add what is new."""
    TABLES.mkdir(exist_ok=True)
    known = (
        codec.decode_json(DIGESTS.read_bytes())
        if DIGESTS.exists()
        else {"tables": {}, "values": []}
    )
    for name, table in tables().items():
        if name in known["tables"]:
            continue
        data = written(table)
        (TABLES / f"{name}.arrow").write_bytes(data)
        known["tables"][name] = {
            "sha256": codec.digest_hex(data),
            "schema_digest": digest_schema(table.schema),
            "row_count": table.num_rows,
            "checksum": checksum(table),
        }
    new = values()[len(known["values"]) :]
    with VALUES.open("ab") as file:
        for value in new:
            file.write(codec.encode_json(value) + b"\n")
            known["values"].append(codec.digest_hex(codec.encode_canonical(value)))
    DIGESTS.write_bytes(codec.encode_canonical(known) + b"\n")


if __name__ == "__main__":
    main()
