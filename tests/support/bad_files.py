"""Files that are wrong in many ways, how each is read, and the rows or the error that is right."""

import bz2
import gzip
import io
import zlib
from collections.abc import Callable
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
from msgspec import Struct

MEBIBYTE = 2**20


class Case(Struct, frozen=True, kw_only=True):
    """Files of a folder of the bucket, how they are read, and the rows or the error that is right.

    `said` are parts of the message; `FOLDER` stands for the folder's address.
    """

    name: str
    files: dict[str, bytes | Callable[[], bytes]] = {}
    source: dict[str, Any] = {}
    sql: str = "SELECT * FROM t"
    rows: list[dict[str, Any]] | None = None
    rejected: int = 0
    kind: str = ""
    said: tuple[str, ...] = ()


def parquet(**columns: Any) -> bytes:
    return parquet_of(pa.table(columns))


def parquet_of(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pa.parquet.write_table(table, sink, **options)
    return bytes(sink.getvalue().to_pybytes())


def orc(**columns: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pa.orc.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue().to_pybytes())


def avro(rows: list[dict[str, Any]]) -> bytes:
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    sink = io.BytesIO()
    fastavro.writer(sink, schema, rows)
    return sink.getvalue()


def spoiled(data: bytes, at: int) -> bytes:
    """The same bytes, some of them turned around."""
    return data[:at] + bytes(byte ^ 0xFF for byte in data[at : at + 16]) + data[at + 16 :]


def zip_bomb() -> bytes:
    """One value of a gibibyte in a mebibyte."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    packed = [packer.compress(b"id\n")]
    packed += [packer.compress(bytes(MEBIBYTE).replace(b"\0", b"9")) for _ in range(1024)]
    return b"".join([*packed, packer.flush()])


LARGE = pa.table({"id": pa.array(range(200_000), pa.int64())})
LARGE_PARQUET = parquet_of(LARGE, compression="none", use_dictionary=False)
LATIN = "id,name\n1,Zoë\n".encode("latin-1")
ID = {"schema": "id INT"}
TWO = {"schema": "id INT, n INT"}

CASES = (
    Case(name="no such path", kind="not_found", said=("there are no files at FOLDER",)),
    Case(
        name="pattern without a match",
        files={"a.csv": b"id\n1\n"},
        source={"path": "FOLDER*.parquet"},
        kind="not_found",
        said=("there are no files at FOLDER*.parquet",),
    ),
    Case(
        name="folder of markers alone",
        files={"_SUCCESS": b"", ".part.crc": b"x"},
        kind="not_found",
        said=("there are no files at FOLDER",),
    ),
    Case(
        name="no such bucket",
        source={"path": "s3://nobody-has-this/t.csv"},
        kind="not_found",
        said=("no such bucket",),
    ),
    Case(
        name="wrong key of the bucket",
        files={"a.csv": b"id\n1\n"},
        source={"auth": "wrong"},
        kind="auth",
        said=("credential 'wrong'", "check its keys"),
    ),
    Case(
        name="credential that is not there",
        files={"a.csv": b"id\n1\n"},
        source={"auth": "nobody"},
        kind="config",
        said=("nobody",),
    ),
    Case(
        name="two formats in one folder",
        files={"a.csv": b"id\n1\n", "b.parquet": parquet(id=[1])},
        kind="validation",
        said=("csv, parquet", "name the 'format'"),
    ),
    Case(
        name="suffix that is unknown",
        files={"a.xyz": b"id\n1\n"},
        kind="validation",
        said=("name the 'format'",),
    ),
    Case(
        name="empty csv",
        files={"a.csv": b""},
        source={"path": "FOLDERa.csv"},
        kind="parse",
        said=("a.csv is empty",),
    ),
    Case(
        name="empty csv beside one with rows",
        files={"a.csv": b"", "b.csv": b"id\n1\n"},
        rows=[{"id": 1}],
    ),
    Case(name="csv of a header alone", files={"a.csv": b"id,n\n"}, source=TWO, rows=[]),
    Case(
        name="row of too many values",
        files={"a.csv": b"id,n\n1,2\n3,4,5\n"},
        source=TWO,
        kind="schema",
        said=("line 3 of FOLDERa.csv", "3 values instead of 2", "on_bad_row"),
    ),
    Case(
        name="row of too few values",
        files={"a.csv": b"id,n\n1\n3,4\n"},
        source={**TWO, "on_bad_row": "divert"},
        rows=[{"id": 3, "n": 4}],
        rejected=1,
    ),
    Case(
        name="text where a number is wanted",
        files={"a.csv": b"id,n\n1,2\n3,x\n"},
        source=TWO,
        kind="schema",
        said=("line 3 of FOLDERa.csv, column 'n': 'x'", "on_bad_row"),
    ),
    Case(
        name="wrong encoding",
        files={"a.csv": LATIN},
        kind="parse",
        said=("FOLDERa.csv is not utf-8", "'encoding'"),
    ),
    Case(
        name="encoding that is named",
        files={"a.csv": LATIN},
        source={"encoding": "latin-1"},
        rows=[{"id": 1, "name": "Zoë"}],
    ),
    Case(
        name="encoding that nobody knows",
        files={"a.csv": LATIN},
        source={"encoding": "utf-7000"},
        kind="validation",
        said=("encoding 'utf-7000' is not known",),
    ),
    Case(
        name="byte order mark",
        files={"a.csv": b"\xef\xbb\xbfid,n\n1,2\n"},
        source=TWO,
        rows=[{"id": 1, "n": 2}],
    ),
    Case(
        name="byte order mark of utf-16",
        files={"a.csv": "id,n\n1,2\n".encode("utf-16")},
        source={**TWO, "encoding": "utf-16"},
        rows=[{"id": 1, "n": 2}],
    ),
    Case(
        name="line ends of three kinds",
        files={"a.csv": b"id,n\r\n1,2\n3,4\r5,6\r\n"},
        source=TWO,
        sql="SELECT * FROM t ORDER BY id",
        rows=[{"id": 1, "n": 2}, {"id": 3, "n": 4}, {"id": 5, "n": 6}],
    ),
    Case(
        name="empty lines",
        files={"a.csv": b"\n\nid,n\n\n1,2\n\n\n3,4\n\n"},
        source=TWO,
        sql="SELECT * FROM t ORDER BY id",
        rows=[{"id": 1, "n": 2}, {"id": 3, "n": 4}],
    ),
    Case(
        name="last line without an end",
        files={"a.csv": b"id,n\n1,2\n3,4"},
        source=TWO,
        sql="SELECT count(*) AS n FROM t",
        rows=[{"n": 2}],
    ),
    Case(
        name="zero bytes in a text",
        files={"a.csv": b"id,name\n1,a\x00b\n"},
        rows=[{"id": 1, "name": "a\x00b"}],
    ),
    Case(
        name="zero bytes in a number",
        files={"a.csv": b"id,n\n1,\x00\x00\n"},
        source=TWO,
        kind="schema",
        said=("line 2 of FOLDERa.csv, column 'n'",),
    ),
    Case(
        name="quote that is never closed",
        files={"a.csv": b'id,name\n1,"a\n2,b\n3,c\n'},
        source={"schema": "id INT, name STRING"},
        kind="parse",
        said=("FOLDERa.csv", "quote"),
    ),
    Case(
        name="quote inside of a value",
        files={"a.csv": b'id,name\n1,5" disk\n2,b\n'},
        sql="SELECT * FROM t ORDER BY id",
        rows=[{"id": 1, "name": '5" disk'}, {"id": 2, "name": "b"}],
    ),
    Case(
        name="wrong delimiter",
        files={"a.csv": b"id;n\n1;2\n"},
        source=TWO,
        kind="schema",
        said=("has no column 'id' of the schema", "id;n"),
    ),
    Case(
        name="column twice in the header",
        files={"a.csv": b"id,id\n1,2\n"},
        kind="schema",
        said=("several columns named 'id'",),
    ),
    Case(
        name="column twice in the header, once behind a byte order mark",
        files={"a.csv": b"\xef\xbb\xbfid,id\n1,2\n"},
        kind="schema",
        said=("several columns named 'id'",),
    ),
    Case(
        name="columns that differ by case alone",
        files={"a.csv": b"id,ID\n1,2\n"},
        kind="db_error",
        said=("AMBIGUOUS_REFERENCE", "`id`"),
    ),
    Case(
        name="one of two columns that differ by case alone",
        files={"a.csv": b"id,ID\n1,2\n"},
        source={"columns": ["ID"]},
        rows=[{"ID": 2}],
    ),
    Case(
        name="columns named by reserved words",
        files={"a.csv": b"select,from\n1,2\n"},
        sql="SELECT `select`, `from` FROM t",
        rows=[{"select": 1, "from": 2}],
    ),
    Case(
        name="column without a name",
        files={"a.csv": b",id\n1,2\n"},
        sql="SELECT id, `` AS first FROM t",
        rows=[{"id": 2, "first": 1}],
    ),
    Case(
        name="columns in another order",
        files={"a.csv": b"id,n\n1,2\n", "b.csv": b"n,id\n4,3\n"},
        source=TWO,
        sql="SELECT * FROM t ORDER BY id",
        rows=[{"id": 1, "n": 2}, {"id": 3, "n": 4}],
    ),
    Case(
        name="column that a later file lacks",
        files={"a.csv": b"id,n\n1,2\n", "b.csv": b"id\n3\n"},
        source=TWO,
        kind="schema",
        said=("FOLDERb.csv has no column 'n'",),
    ),
    Case(
        name="column that a later file has more, guessed",
        files={"a.csv": b"id\n1\n", "b.csv": b"id,n\n3,4\n"},
        sql="SELECT * FROM t ORDER BY id",
        kind="schema",
        said=("FOLDERa.csv has no column 'n'",),
    ),
    Case(
        name="number too large for its decimal",
        files={"a.csv": b"id,price\n1,12345.67\n"},
        source={"schema": "id INT, price DECIMAL(5,2)"},
        kind="schema",
        said=("line 2 of FOLDERa.csv, column 'price': '12345.67'",),
    ),
    Case(
        name="whole number out of range",
        files={"a.csv": b"id\n3000000000\n"},
        source={**ID, "on_bad_row": "divert"},
        rows=[],
        rejected=1,
    ),
    Case(
        name="moment that is no day of the calendar",
        files={"a.csv": b"at\n2026-02-30T00:00:00Z\n"},
        source={"schema": "at TIMESTAMP"},
        kind="schema",
        said=("line 2 of FOLDERa.csv, column 'at'",),
    ),
    Case(
        name="moment after the end of the range",
        files={"a.parquet": parquet(at=pa.array([2**60], pa.timestamp("ms")))},
        kind="schema",
        said=("FOLDERa.parquet", "'at'"),
    ),
    Case(
        name="nanoseconds that would be lost",
        files={"a.parquet": parquet(at=pa.array([1_700_000_000_000_000_001], pa.timestamp("ns")))},
        kind="schema",
        said=("FOLDERa.parquet", "'at'"),
    ),
    Case(
        name="empty lines before a row of too many values",
        files={"a.csv": b"\nid,n\n1,2\n\n3,4,5\n"},
        source=TWO,
        kind="schema",
        said=("line 5 of FOLDERa.csv", "3 values instead of 2"),
    ),
    Case(
        name="values that fit around quotes over lines",
        files={"a.csv": b'id,name\n1,"a\nb"\n2,"c ""d"\n3,"e\n"\n'},
        sql="SELECT * FROM t ORDER BY id",
        rows=[
            {"id": 1, "name": "a\nb"},
            {"id": 2, "name": 'c "d'},
            {"id": 3, "name": "e\n"},
        ],
    ),
    Case(
        name="zip bomb of one line",
        files={"a.csv.gz": zip_bomb},
        source={"schema": "id STRING"},
        kind="parse",
        said=("FOLDERa.csv.gz", "bytes"),
    ),
    Case(
        name="gzip that is cut off",
        files={"a.csv.gz": gzip.compress(b"id\n" + b"1\n" * 100_000)[:-60]},
        source=ID,
        kind="parse",
        said=("FOLDERa.csv.gz",),
    ),
    Case(
        name="gzip whose checksum is wrong",
        files={"a.csv.gz": gzip.compress(b"id\n1\n")[:-8] + b"\0" * 8},
        source=ID,
        kind="parse",
        said=("FOLDERa.csv.gz",),
    ),
    Case(
        name="gzip of two members",
        files={"a.csv.gz": gzip.compress(b"id\n1\n") + gzip.compress(b"2\n")},
        source=ID,
        sql="SELECT count(*) AS n FROM t",
        rows=[{"n": 2}],
    ),
    Case(
        name="bzip2 of two members",
        files={"a.csv.bz2": bz2.compress(b"id\n1\n") + bz2.compress(b"2\n")},
        source=ID,
        sql="SELECT count(*) AS n FROM t",
        rows=[{"n": 2}],
    ),
    Case(
        name="gzip by its name alone",
        files={"a.csv.gz": b"id\n1\n"},
        source=ID,
        kind="parse",
        said=("FOLDERa.csv.gz",),
    ),
    Case(name="empty parquet", files={"a.parquet": b""}, kind="parse", said=("FOLDERa.parquet",)),
    Case(
        name="parquet that is cut off",
        files={"a.parquet": LARGE_PARQUET[:-100]},
        kind="parse",
        said=("FOLDERa.parquet does not read as parquet",),
    ),
    Case(
        name="csv named parquet",
        files={"a.parquet": b"id\n1\n"},
        kind="parse",
        said=("FOLDERa.parquet does not read as parquet",),
    ),
    Case(
        name="parquet spoiled inside",
        files={"a.parquet": spoiled(LARGE_PARQUET, 4)},
        sql="SELECT count(*) AS n, sum(id) AS s FROM t",
        kind="parse",
        said=("FOLDERa.parquet",),
    ),
    Case(
        name="parquet column twice",
        files={
            "a.parquet": parquet_of(
                pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"])
            )
        },
        kind="schema",
        said=("several columns named 'id'",),
    ),
    Case(
        name="type that drifts to text",
        files={"a.parquet": parquet(id=[1]), "b.parquet": parquet(id=["x"])},
        kind="schema",
        said=("FOLDERb.parquet", "column 'id'"),
    ),
    Case(
        name="type that drifts to a wider one and does not fit",
        files={
            "a.parquet": parquet(id=pa.array([1], pa.int32())),
            "b.parquet": parquet(id=pa.array([2**40], pa.int64())),
        },
        kind="schema",
        said=("FOLDERb.parquet", "column 'id'"),
    ),
    Case(
        name="column that a later parquet has more",
        files={"a.parquet": parquet(id=[1]), "b.parquet": parquet(id=[2], n=[3])},
        source={"merge_schema": True},
        sql="SELECT * FROM t ORDER BY id",
        rows=[{"id": 1, "n": None}, {"id": 2, "n": 3}],
    ),
    Case(
        name="column that is in no file",
        files={"a.parquet": parquet(id=[1])},
        source={"columns": ["nope"]},
        kind="schema",
        said=("has no column 'nope'", "it has id"),
    ),
    Case(
        name="folders of different columns",
        files={"day=1/a.parquet": parquet(id=[1]), "region=x/a.parquet": parquet(id=[1])},
        kind="schema",
        said=("in folders of different columns",),
    ),
    Case(
        name="folder that is no date",
        files={"day=soon/a.parquet": parquet(id=[1])},
        source={"schema": "id BIGINT, day DATE"},
        kind="schema",
        said=("folder day=soon is no date32",),
    ),
    Case(
        name="folder of null, and one with a slash",
        files={
            "day=__HIVE_DEFAULT_PARTITION__/a.parquet": parquet(id=[1]),
            "day=a%2Fb/a.parquet": parquet(id=[2]),
        },
        sql="SELECT * FROM t ORDER BY id",
        rows=[{"id": 1, "day": None}, {"id": 2, "day": "a/b"}],
    ),
    Case(
        name="line that is no json",
        files={"a.ndjson": b'{"id": 1}\n{"id": \n{"id": 3}\n'},
        kind="parse",
        said=("line 2 of FOLDERa.ndjson",),
    ),
    Case(
        name="line that is no mapping",
        files={"a.ndjson": b'{"id": 1}\n[2]\n'},
        kind="parse",
        said=("line 2 of FOLDERa.ndjson",),
    ),
    Case(
        name="type that drifts from line to line",
        files={"a.ndjson": b'{"id": 1}\n{"id": "x"}\n'},
        kind="parse",
        said=("line 2 of FOLDERa.ndjson", "id"),
    ),
    Case(
        name="json of wrong bytes",
        files={"a.ndjson": b'{"id": "\xff\xfe"}\n'},
        kind="parse",
        said=("FOLDERa.ndjson",),
    ),
    Case(
        name="json of ten thousand levels",
        files={"a.ndjson": b'{"id": ' + b"[" * 10_000 + b"]" * 10_000 + b"}\n"},
        kind="parse",
        said=("line 1 of FOLDERa.ndjson", "100 levels"),
    ),
    Case(
        name="json with NaN",
        files={"a.ndjson": b'{"id": NaN}\n{"id": 1.5}\n'},
        sql="SELECT count(*) AS n, count_if(isnan(id)) AS m FROM t",
        rows=[{"n": 2, "m": 1}],
    ),
    Case(
        name="json with a key twice",
        files={"a.ndjson": b'{"id": 1, "id": 2}\n'},
        kind="parse",
        said=("line 1 of FOLDERa.ndjson", "id"),
    ),
    Case(
        name="json line of two mebibytes",
        files={"a.ndjson": lambda: b'{"id": "' + b"x" * (2 * MEBIBYTE) + b'"}\n{"id": "y"}\n'},
        sql="SELECT sum(length(id)) AS n FROM t",
        rows=[{"n": 2 * MEBIBYTE + 1}],
    ),
    Case(
        name="json with empty lines and without an end",
        files={"a.ndjson": b'\n{"id": 1}\n\n\r\n{"id": 2}'},
        sql="SELECT count(*) AS n FROM t",
        rows=[{"n": 2}],
    ),
    Case(
        name="wrong line of json after a mebibyte",
        files={"a.ndjson": lambda: b'{"id": 1}\n' * 300_000 + b'{"id": "x"}\n'},
        kind="parse",
        said=("line 300001 of FOLDERa.ndjson",),
    ),
    Case(
        name="json with a byte order mark, and brackets in a text",
        files={"a.ndjson": b'\xef\xbb\xbf{"id": "' + b"[{" * 200 + b"}]" * 200 + b'"}\n'},
        sql="SELECT length(id) AS n FROM t",
        rows=[{"n": 800}],
    ),
    Case(
        name="json list that is cut off",
        files={"a.json": b'[{"id": 1}, {"id": 2'},
        kind="parse",
        said=("FOLDERa.json",),
    ),
    Case(
        name="json list of numbers",
        files={"a.json": b"[1, 2]"},
        kind="parse",
        said=("FOLDERa.json is no list of mappings",),
    ),
    Case(name="avro that is none", files={"a.avro": b"no"}, kind="parse", said=("FOLDERa.avro",)),
    Case(
        name="avro that is cut off",
        files={"a.avro": avro([{"id": number} for number in range(20_000)])[:-20]},
        kind="parse",
        said=("FOLDERa.avro",),
    ),
    Case(name="orc that is none", files={"a.orc": b"ORC"}, kind="parse", said=("FOLDERa.orc",)),
    Case(
        name="orc that is cut off",
        files={"a.orc": orc(id=list(range(10_000)))[:-10]},
        kind="parse",
        said=("FOLDERa.orc",),
    ),
    Case(
        name="arrow that is none",
        files={"a.arrow": b"ARROW1"},
        kind="parse",
        said=("FOLDERa.arrow",),
    ),
    Case(
        name="division by zero",
        files={"a.csv": b"id\n0\n"},
        sql="SELECT 1 / id AS x FROM t",
        kind="db_error",
        said=("DIVIDE_BY_ZERO",),
    ),
    Case(
        name="text that is cast to a number",
        files={"a.csv": b"id\nx\n"},
        sql="SELECT CAST(id AS INT) AS x FROM t",
        kind="db_error",
        said=("CAST_INVALID_INPUT", "'x'"),
    ),
    Case(
        name="sum that is too large",
        files={"a.parquet": parquet(id=[2**62, 2**62])},
        sql="SELECT sum(id) AS x FROM t",
        kind="db_error",
        said=("ARITHMETIC_OVERFLOW",),
    ),
    Case(
        name="column that the query has wrong",
        files={"a.csv": b"id\n1\n"},
        sql="SELECT idd FROM t",
        kind="db_error",
        said=("UNRESOLVED_COLUMN", "`id`"),
    ),
    Case(
        name="table that the query has wrong",
        files={"a.csv": b"id\n1\n"},
        sql="SELECT * FROM tt",
        kind="db_error",
        said=("tt",),
    ),
    Case(
        name="query that is no SQL",
        files={"a.csv": b"id\n1\n"},
        sql="SELEC * FROM t",
        kind="db_error",
        said=("PARSE_SYNTAX_ERROR",),
    ),
)
