"""Files whose rows are wrong in ways that readers take without a word; they are cases as well."""

from tests.support.bad_files import MEBIBYTE, Case

BAD_ROWS = (
    Case(
        name="null first in json",
        files={"a.ndjson": b'null\n{"id": 1}\n'},
        kind="parse",
        said=("line 1 of FOLDERa.ndjson is null",),
    ),
    Case(
        name="null before other text of a line of json",
        files={"a.ndjson": b'\n \tnull {"id": 1}\n'},
        kind="parse",
        said=("line 2 of FOLDERa.ndjson is null",),
    ),
    Case(
        name="null first in a later block of json",
        files={"a.ndjson": lambda: b'{"id": 1}' + b" " * MEBIBYTE + b'\nnull\n{"id": 2}\n'},
        kind="parse",
        said=("line 2 of FOLDERa.ndjson is null",),
    ),
    Case(
        name="null in json among other values",
        files={"a.ndjson": b'{"id": null}\n{"id": 1}\n'},
        sql="SELECT count(*) AS n, count(id) AS m FROM t",
        rows=[{"n": 2, "m": 1}],
    ),
    Case(
        name="json of a thousand levels over lines",
        files={"a.ndjson": b'{"id": ' + b"[\n" * 1000 + b"]\n" * 1000 + b"}\n"},
        kind="parse",
        said=("line 100 of FOLDERa.ndjson", "100 levels"),
    ),
    Case(
        name="wrong line of json after empty lines",
        files={"a.ndjson": b'\n{"id": 1}\n\r\n\n{"id": "x"}\n'},
        kind="parse",
        said=("line 5 of FOLDERa.ndjson",),
    ),
)
