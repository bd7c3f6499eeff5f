"""The pipeline of ten steps: its inputs, its playbook, and every table and file that it leaves."""

import asyncio
import csv
import io
from pathlib import Path
from typing import Any

import asyncpg
import deltalake
import obstore
import pyarrow as pa
import pyarrow.parquet
import sqlalchemy
from obstore.store import S3Store
from pyiceberg.catalog.sql import SqlCatalog
from tests.proof import running
from tests.support.asking import http
from tests.support.buckets import account_of, keys_of, open_bucket
from tests.support.servers import S3Server
from tests.support.stack import Stack

FOLDER = Path(__file__).parent
STEPS = (
    *("clean", "customers", "joined", "merged", "scored"),
    *("daily", "published", "totals", "audited", "report"),
)
# Only what the engine itself holds for retryable: each kill must end as such an error.
RETRY = "{max_attempts: 20, delay: 1s}"
CUSTOMERS = 400
REGIONS = 12
FILES = 4
# Of each batch; also every fifth order of a batch corrects one of the batch before.
NEGATIVE_EVERY = 97
DIGITS = 2
DRIVER = "postgresql+psycopg2"
LISTED = ("clean", "joined", "daily")
TABLES = ("customers", "orders", "totals", "audit")

Rows = list[tuple[Any, ...]]


class Pipeline:
    """The pipeline in a place of its own: a schema, a folder of the bucket, a playbook."""

    def __init__(self, stack: Stack, s3: S3Server, place: str, *, rows: int) -> None:
        self.stack = stack
        self.s3 = s3
        self.place = place
        self.rows = rows
        self.path = f"pipeline/{place}"
        self._bucket: S3Store = open_bucket(s3)

    def prepare(self) -> None:
        """Put the customers into the bucket, make the tables, register the playbook."""
        customers = [["id", "region"]]
        customers += [[str(n), f"region {n % REGIONS}"] for n in range(CUSTOMERS)]
        self._put("customers/all.csv", customers)
        asyncio.run(_execute(self.stack.url("target"), self._fill_in("tables.sql")))
        running.register(self.stack, self._fill_in("pipeline.yaml"))

    def add_orders(self, batch: int) -> None:
        """Put the files of a batch into the bucket; some orders are wrong, some are corrections."""
        for number in range(FILES):
            orders = [["id", "customer", "amount", "note"]]
            orders += [self._write_order(batch, n) for n in range(number, self.rows, FILES)]
            self._put(f"orders/batch-{batch}-{number}.csv", orders)

    def _write_order(self, batch: int, number: int) -> list[str]:
        is_correction = batch > 1 and number % 5 == 0
        order_id = (batch - (2 if is_correction else 1)) * self.rows + number
        sign = "-" if number % NEGATIVE_EVERY == 1 else ""
        amount = f"{sign}{number * 7919 % 90_000 // 100}.{number * 7919 % 100:0{DIGITS}}"
        return [
            str(order_id),
            str(number * 31 % CUSTOMERS),
            amount,
            f'of "{batch}",\nline {number}',
        ]

    def _put(self, key: str, lines: list[list[str]]) -> None:
        text = io.StringIO()
        csv.writer(text).writerows(lines)
        obstore.put(self._bucket, f"{self.place}/{key}", text.getvalue().encode())

    def _fill_in(self, name: str) -> str:
        text = (FOLDER / name).read_text()
        words = {"PLACE": self.place, "BUCKET": self.s3.bucket, "RETRY": RETRY}
        for word, value in words.items():
            text = text.replace(word, value)
        return text

    def read_all(self) -> dict[str, Rows]:
        """Read every table, every file of every folder and the state, with clients of others."""
        found = {f"postgres {table}": self._read_table(table) for table in TABLES}
        found |= {f"parquet {name}": self._read_folder(name) for name in LISTED}
        found |= {f"delta {name}": self._read_delta(name) for name in ("scored", "report")}
        found["iceberg orders"] = self._read_iceberg()
        found["state orders"] = [self._read_state()]
        return found

    def list_stray_files(self) -> list[str]:
        """List the files of the Delta tables and the Iceberg table that no commit names."""
        strays = []
        for name in ("scored", "report"):
            table = self._open_delta(name)
            named = {uri.rpartition("/")[2] for uri in table.file_uris()}
            keys = keys_of(self._bucket, f"{self.place}/{name}/")
            strays += [
                key
                for key in keys
                if key.endswith(".parquet") and key.rpartition("/")[2] not in named
            ]
        return strays

    def _read_table(self, table: str) -> Rows:
        query = f"SELECT * FROM {self.place}.{table}"  # noqa: S608 - our own words
        return _sort(asyncio.run(_fetch(self.stack.url("target"), query)))

    def _read_folder(self, name: str) -> Rows:
        rows: Rows = []
        for key in keys_of(self._bucket, f"{self.place}/{name}/"):
            if key.endswith(".parquet"):
                data = bytes(obstore.get(self._bucket, key).bytes())
                # The folder's name is a column of the rows in it.
                folders = key.rpartition("/")[0].removeprefix(f"{self.place}/")
                table = pa.parquet.read_table(pa.BufferReader(data))
                rows += [(folders.rpartition("=")[2], *row) for row in _to_rows(table)]
        return _sort(rows)

    def _open_delta(self, name: str) -> deltalake.DeltaTable:
        account = account_of(self.s3)
        options = {
            "AWS_ENDPOINT_URL": account["endpoint"],
            "AWS_REGION": account["region"],
            "AWS_ACCESS_KEY_ID": account["access_key"],
            "AWS_SECRET_ACCESS_KEY": account["secret_key"],
            "AWS_ALLOW_HTTP": "true",
        }
        return deltalake.DeltaTable(
            f"s3://{self.s3.bucket}/{self.place}/{name}", storage_options=options
        )

    def _read_delta(self, name: str) -> Rows:
        rows: Rows = []
        for uri in self._open_delta(name).file_uris():
            key = uri.removeprefix(f"s3://{self.s3.bucket}/")
            data = bytes(obstore.get(self._bucket, key).bytes())
            rows += _to_rows(pa.parquet.read_table(pa.BufferReader(data)))
        return _sort(rows)

    def _read_iceberg(self) -> Rows:
        account = account_of(self.s3)
        url = sqlalchemy.make_url(self.stack.url("target")).set(drivername=DRIVER)
        catalog = SqlCatalog(
            "noetl",
            **{
                "uri": url.render_as_string(hide_password=False),
                "warehouse": f"s3://{self.s3.bucket}/warehouse",
                "s3.endpoint": account["endpoint"],
                "s3.region": account["region"],
                "s3.access-key-id": account["access_key"],
                "s3.secret-access-key": account["secret_key"],
            },
        )
        return _sort(_to_rows(catalog.load_table(f"{self.place}.orders").scan().to_arrow()))

    def _read_state(self) -> tuple[Any, ...]:
        answer = http.get(
            f"{self.stack.url('api')}/api/state/value",
            params={"path": self.path, "name": "orders"},
            timeout=30,
        )
        found = answer.raise_for_status().json()
        return found["value"], found["revision"]


def keep_credentials(stack: Stack, s3: S3Server) -> None:
    """Keep the credentials of the bucket and of the target database."""
    running.keep(stack, "pg_target", stack.url("target"))
    body = {"name": "lake", "type": "s3", "data": account_of(s3)}
    http.post(f"{stack.url('api')}/api/credentials", json=body, timeout=10).raise_for_status()


def list_differences(found: dict[str, Rows], wanted: dict[str, Rows]) -> list[str]:
    """Name what is not equal, with the first row that is in one of both alone."""
    said = []
    for name, rows in wanted.items():
        if found[name] == rows:
            continue
        left, right = set(found[name]), set(rows)
        odd = next(iter(left ^ right), "the same rows, another number of times")
        said.append(f"{name}: {len(found[name])} rows, {len(rows)} in the calm run; such as {odd}")
    return said


def _to_rows(table: pa.Table) -> Rows:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _sort(rows: Rows) -> Rows:
    return sorted(rows, key=repr)


async def _execute(dsn: str, text: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(text)
    finally:
        await connection.close()


async def _fetch(dsn: str, query: str) -> Rows:
    connection = await asyncpg.connect(dsn)
    try:
        return [tuple(row.values()) for row in await connection.fetch(query)]
    finally:
        await connection.close()
