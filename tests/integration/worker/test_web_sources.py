"""Files of HTTP servers as sources of DuckDB and of transfers, under the rules for requests."""

import io
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from msgspec import structs
from tests.support.calls import call_of
from tests.support.site import Site, serving
from tests.support.working import Bench, bench

from noetl_worker.tools.calls.call import Call, Outcome

CSV = b"id;code;amount\n1;007;1.50\n2;x;2.25\n"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as found:
        found.files["orders.csv"] = CSV
        found.files["orders"] = CSV
        found.files["orders.ndjson"] = b'{"id": 1}\n{"id": 2}\n'
        found.files["day=3/orders.parquet"] = _write_parquet()
        found.files["large.csv"] = b"id\n" + b"1\n" * 4096
        yield found


def _write_parquet() -> bytes:
    buffer = io.BytesIO()
    rows = pa.table({"id": [1, 2], "amount": [Decimal("1.50"), Decimal("2.25")]})
    pyarrow.parquet.write_table(rows, buffer)
    return buffer.getvalue()


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path), http_response_bytes_max=4096) as found:
        yield found


async def query(worker: Bench, text: str, **source: Any) -> Outcome:
    fields = {"query": text, "database": ":memory:", "inputs": {"o": source}}
    return await worker.tools.run(call_of("duckdb", fields))


async def read(worker: Bench, text: str, **source: Any) -> Any:
    outcome = await query(worker, text, **source)
    assert outcome.error is None, outcome.error
    return outcome.data["rows"]


async def refused(worker: Bench, **source: Any) -> Any:
    outcome = await query(worker, "SELECT * FROM o", **source)
    assert outcome.error is not None, outcome.data
    return outcome.error


async def test_duckdb_reads_csv_json_lines_and_parquet(worker: Bench, site: Site) -> None:
    url = f"{site.url}/files/orders.csv?signature=s3cret"
    rows = await read(worker, "SELECT * FROM o ORDER BY id", path=url, delimiter=";")
    assert [(row["id"], row["code"]) for row in rows] == [(1, "007"), (2, "x")]
    lines = f"{site.url}/files/orders.ndjson"
    assert await read(worker, "SELECT sum(id) AS n FROM o", path=lines) == [{"n": 3}]
    parquet = f"{site.url}/files/day=3/orders.parquet"
    text = "SELECT day, CAST(sum(amount) AS VARCHAR) AS total FROM o GROUP BY day"
    assert await read(worker, text, path=parquet) == [{"day": "3", "total": "3.75"}]


async def test_a_transfer_reads_a_file_of_a_server(worker: Bench, site: Site) -> None:
    source = {"path": f"{site.url}/files/orders.csv", "delimiter": ";"}
    fields = {"source": source, "target": {"path": "out/", "mode": "append"}}
    call: Call = structs.replace(call_of("transfer", fields), auth={"name": "of the database"})
    outcome = await worker.tools.run(call)
    assert outcome.error is None, outcome.error
    assert outcome.data["rows_transferred"] == 2


async def test_each_hop_is_checked_and_no_address_shows_a_secret(worker: Bench, site: Site) -> None:
    here = f"{site.url}/status/302?location={site.url}/files/orders.ndjson"
    found = await read(worker, "SELECT count(*) AS n FROM o", path=here, format="ndjson")
    assert found == [{"n": 2}]
    hidden = f"{site.url}/status/302?location=http://169.254.169.254/latest.ndjson"
    error = await refused(worker, path=hidden, format="ndjson")
    assert (error.kind, "169.254.169.254:80 are not allowed" in error.message) == ("config", True)
    error = await refused(worker, path="http://10.0.0.1/orders.csv")
    assert (error.kind, "not allowed" in error.message) == ("config", True)
    error = await refused(worker, path=f"{site.url}/files/nope.csv?signature=s3cret")
    assert (error.kind, "s3cret" in error.message) == ("not_found", False)


async def test_what_is_too_large_or_no_file_is_refused(worker: Bench, site: Site) -> None:
    error = await refused(worker, path=f"{site.url}/files/large.csv")
    assert error.kind == "payload_too_large"
    for path, told in (
        (f"{site.url}/files/", "is not one file"),
        (f"{site.url}/files/*.csv", "is not one file"),
        (f"{site.url}/files/orders", "name the 'format'"),
    ):
        assert told in (await refused(worker, path=path)).message
    target = {"path": f"{site.url}/files/", "mode": "append"}
    fields = {"source": {"type": "data", "data": [{"id": 1}]}, "target": target}
    outcome = await worker.tools.run(call_of("transfer", fields))
    assert outcome.error is not None
    assert "has the scheme 'http'" in outcome.error.message
