"""The pipeline of ten steps: its inputs, its playbook, and every table and file that it leaves."""

import asyncio
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import deltalake
import duckdb
import obstore
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import sqlalchemy
from obstore.store import S3Store
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
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
# At most: so many that the steps over customers and regions last long enough to be met by a kill.
CUSTOMERS_MAX = 100_000
REGION_CUSTOMERS = 50
FILES = 4
# The file that code of the pipeline holds open from its first line to the end of its process.
RUNNING = "code-is-running"
DRIVER = "postgresql+psycopg2"
LISTED = ("clean", "joined", "daily")
DELTA = ("scored", "report")
TABLES = ("customers", "orders", "totals", "audit")


class Pipeline:
    """The pipeline in a place of its own: a schema, a folder of the bucket, a playbook."""

    def __init__(self, stack: Stack, s3: S3Server, place: str, *, rows: int) -> None:
        self.stack = stack
        self.s3 = s3
        self.place = place
        self.rows = rows
        self._customer_count = min(CUSTOMERS_MAX, 2 * rows)
        self.path = f"pipeline/{place}"
        self._bucket: S3Store = open_bucket(s3)

    def prepare(self) -> None:
        """Put the customers into the bucket, make the tables, register the playbook."""
        count = self._customer_count
        values = {"customer_count": count, "region_count": count // REGION_CUSTOMERS}
        self._put("customers/all.csv", "customers.sql", values)
        asyncio.run(_execute(self.stack.url("target"), self._fill_in("tables.sql")))
        running.register(self.stack, self._fill_in("pipeline.yaml"))

    def add_orders(self, batch: int) -> None:
        """Put the files of a batch into the bucket; some orders are wrong, some are corrections."""
        for number in range(FILES):
            values = {
                "batch": batch,
                "file": number,
                "file_count": FILES,
                "order_count": self.rows,
                "customer_count": self._customer_count,
            }
            self._put(f"orders/batch-{batch}-{number}.csv", "orders.sql", values)

    def _put(self, key: str, query: str, values: Mapping[str, int]) -> None:
        """Put the rows of a query into the bucket as CSV."""
        with tempfile.NamedTemporaryFile(suffix=".csv") as file, duckdb.connect() as connection:
            rows = connection.sql((FOLDER / query).read_text(), params=dict(values))
            pyarrow.csv.write_csv(rows.to_arrow_table(), file.name)
            obstore.put(self._bucket, f"{self.place}/{key}", Path(file.name))

    def _fill_in(self, name: str) -> str:
        text = (FOLDER / name).read_text()
        words = {"PLACE": self.place, "BUCKET": self.s3.bucket, "RETRY": RETRY, "RUNNING": RUNNING}
        for word, value in words.items():
            text = text.replace(word, value)
        return text

    def read_all(self) -> dict[str, pa.Table]:
        """Read every table, every file of every folder and the state, with clients of others."""
        return {name: read() for name, read in self.list_readers().items()}

    def list_readers(self) -> dict[str, Callable[[], pa.Table]]:
        """Name all that the pipeline leaves, each with what reads it."""
        readers: dict[str, Callable[[], pa.Table]] = {
            f"postgres {table}": partial(self._read_table, table) for table in TABLES
        }
        readers |= {f"parquet {name}": partial(self._read_folder, name) for name in LISTED}
        readers |= {f"delta {name}": partial(self._read_delta, name) for name in DELTA}
        readers["iceberg orders"] = self._read_iceberg
        readers["state orders"] = self._read_state
        return readers

    def list_stray_files(self) -> list[str]:
        """List the files of lake tables that no commit names, and the tables of dead copies."""
        strays = []
        for name in DELTA:
            named = {uri.rpartition("/")[2] for uri in self._open_delta(name).file_uris()}
            strays += self._list_unnamed(f"{self.place}/{name}/", named)
        paths = self._open_iceberg().inspect.all_data_files()["file_path"].to_pylist()
        named = {path.rpartition("/")[2] for path in paths}
        strays += self._list_unnamed(f"warehouse/{self.place}/orders/", named)
        copies = "SELECT relname FROM pg_class WHERE relname LIKE 'noetl_staging%'"
        return strays + asyncio.run(_fetch_names(self.stack.url("target"), copies))

    def _list_unnamed(self, folder: str, named: set[str]) -> list[str]:
        keys = [key for key in keys_of(self._bucket, folder) if key.endswith(".parquet")]
        return [key for key in keys if key.rpartition("/")[2] not in named]

    def _read_table(self, table: str) -> pa.Table:
        """Read a table of PostgreSQL as the texts of its values."""
        query = f"SELECT * FROM {self.place}.{table}"  # noqa: S608 - our own words
        with tempfile.NamedTemporaryFile(suffix=".csv") as file:
            asyncio.run(_copy_rows(self.stack.url("target"), query, Path(file.name)))
            with Path(file.name).open("rb") as written:
                names = written.readline().decode().strip().split(",")
            texts = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()))
            return pyarrow.csv.read_csv(file.name, convert_options=texts)

    def _read_folder(self, name: str) -> pa.Table:
        """Read the files of a folder; the folder's name is a column of the rows in it."""
        tables = []
        for key in keys_of(self._bucket, f"{self.place}/{name}/"):
            if key.endswith(".parquet"):
                folders = key.rpartition("/")[0].removeprefix(f"{self.place}/")
                table = self._read_file(key)
                folder = pa.array([folders.rpartition("=")[2]] * len(table), pa.string())
                tables.append(table.append_column("folder", folder))
        return pa.concat_tables(tables)

    def _read_file(self, key: str) -> pa.Table:
        data = obstore.get(self._bucket, key).bytes()
        return pa.parquet.read_table(pa.BufferReader(data))

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

    def _read_delta(self, name: str) -> pa.Table:
        start = f"s3://{self.s3.bucket}/"
        keys = [uri.removeprefix(start) for uri in self._open_delta(name).file_uris()]
        return pa.concat_tables([self._read_file(key) for key in keys])

    def _read_iceberg(self) -> pa.Table:
        return self._open_iceberg().scan().to_arrow()

    def _open_iceberg(self) -> Table:
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
        return catalog.load_table(f"{self.place}.orders")

    def _read_state(self) -> pa.Table:
        answer = http.get(
            f"{self.stack.url('api')}/api/state/value",
            params={"path": self.path, "name": "orders"},
            timeout=30,
        )
        found = answer.raise_for_status().json()
        return pa.table({"value": [str(found["value"])], "revision": [found["revision"]]})


def keep_credentials(stack: Stack, s3: S3Server) -> None:
    """Keep the credentials of the bucket and of the target database."""
    running.keep(stack, "pg_target", stack.url("target"))
    body = {"name": "lake", "type": "s3", "data": account_of(s3)}
    http.post(f"{stack.url('api')}/api/credentials", json=body, timeout=60).raise_for_status()


def list_differences(pipeline: Pipeline, wanted: Mapping[str, pa.Table]) -> list[str]:
    """Name what a pipeline left otherwise than wanted, with a row that one of both has alone."""
    differences = []
    for name, read_rows in pipeline.list_readers().items():
        rows = read_rows()
        odd = [*_list_odd_rows(rows, wanted[name]), *_list_odd_rows(wanted[name], rows)]
        if odd or len(rows) != len(wanted[name]):
            counts = f"{len(rows)} rows, {len(wanted[name])} in the calm run"
            differences.append(f"{name}: {counts}; such as {odd[:1]}")
    return differences


def _list_odd_rows(rows: pa.Table, others: pa.Table) -> list[tuple[Any, ...]]:
    """List at most one row that is there more often than among the others."""
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        connection.register("others", others.select(rows.column_names))
        query = "SELECT * FROM rows EXCEPT ALL SELECT * FROM others LIMIT 1"
        return connection.sql(query).fetchall()


async def _execute(dsn: str, text: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(text)
    finally:
        await connection.close()


async def _copy_rows(dsn: str, query: str, path: Path) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.copy_from_query(query, output=path, format="csv", header=True)
    finally:
        await connection.close()


async def _fetch_names(dsn: str, query: str) -> list[str]:
    connection = await asyncpg.connect(dsn)
    try:
        return [str(row[0]) for row in await connection.fetch(query)]
    finally:
        await connection.close()
