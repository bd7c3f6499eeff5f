"""Queries over stored tables: read where they lie, and no row of them decoded for it."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from msgspec import Struct, structs
from tests.support.attempting import site_of
from tests.support.calls import VISITS
from tests.support.servers import S3Server
from tests.support.tiering import TierCounts, open_shared
from tests.support.working import EXECUTION, ORGANIZATION, TENANT, settings_of

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec, spread_table
from noetl_contracts.payloads import ARROW_MEDIA_TYPE, PayloadRef
from noetl_contracts.spread_table import SPREAD_MEDIA_TYPE, SpreadTable
from noetl_playbook.views.results import PipelineResult, TaskResult
from noetl_storage.arrow import encoding
from noetl_storage.arrow.encoding import PARQUET_MEDIA_TYPE
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.tiers.disk import DiskTier
from noetl_storage.tiers.tiered_payloads import TieredPayloads
from noetl_worker.tool_factory import open_tools
from noetl_worker.tools import Tools
from noetl_worker.tools.calls.call import Call, Timeout
from noetl_worker.tools.duckdb.inputs import StoredTables

MEBIBYTE = 1024 * 1024
GIBIBYTE = 1024 * MEBIBYTE
TABLE = pa.table(
    {
        "i": pa.array(range(1000), pa.int64()),
        "amount": pa.array([None, 1.5] * 500, pa.float64()),
        "name": pa.array([f"n{i % 7}" for i in range(1000)], pa.large_string()),
    }
)
QUERY = "SELECT count(*) AS n, sum(i) AS i, sum(amount) AS amount, count(DISTINCT name) AS k FROM o"
ANSWER = [{"n": 1000, "i": 499500, "amount": 750.0, "k": 7}]


def as_parquet(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def as_arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


class Near(Struct, frozen=True, kw_only=True):
    """A store, tools that read it in place, and what the tiers were asked."""

    store: TieredPayloads
    tools: Tools
    seen: TierCounts

    async def put(self, data: bytes, media_type: str) -> PayloadRef:
        return await self.store.put_payload(
            data, tenant_id=TENANT, organization_id=ORGANIZATION, media_type=media_type
        )

    async def rows(self, query: str, ref: PayloadRef, *, is_result: bool = False) -> Any:
        """Ask a query over one input `o`, named as a playbook would."""
        named: Any = ref.uri
        if is_result:
            named = {
                "kind": "result_ref",
                "ref": f"noetl://execution/{EXECUTION}/result/s/1",
                "sha256": ref.sha256,
                "media_type": ref.media_type,
                "bytes": ref.payload_bytes,
            }
        found = await self.tools.run(
            Call(
                site=site_of(),
                task="t",
                kind="duckdb",
                attempt=1,
                visit=next(VISITS),
                fields={"query": query, "database": ":memory:", "inputs": {"o": named}},
                input={},
                auth=None,
                timeout=Timeout(total=60),
            )
        )
        assert found.error is None, found.error
        return found.data["rows"]


@asynccontextmanager
async def near(
    url: str, folder: Path, *, tiers: dict[str, Any] | None = None, **keys: Any
) -> AsyncIterator[Near]:
    async with AsyncExitStack() as stack:
        below = await stack.enter_async_context(open_payloads(url, **keys))
        seen = TierCounts()
        store = TieredPayloads(below, watch=seen, **(tiers or {}))
        config = settings_of(work_directory=str(folder / "work"))
        opened = open_tools(config, store, SystemClock(), near=store)
        tools, _ = await stack.enter_async_context(opened)
        yield Near(store=store, tools=tools, seen=seen)


@pytest.fixture(params=["file", "file and disk", "s3 and disk", "shared"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Near]:
    (tmp_path / "work").mkdir()
    disk = DiskTier(tmp_path / "disk", store_url="x", bytes_max=256 * MEBIBYTE)
    url, keys, tiers = (tmp_path / "store").as_uri(), {}, {}
    match request.param:
        case "file and disk":
            tiers = {"disk": disk}
        case "s3 and disk":
            server: S3Server = request.getfixturevalue("s3")
            url, tiers = server.payload_url, {"disk": disk}
            keys = {"access_key": server.access_key, "secret_key": server.secret_key}
        case "shared":
            tiers = {"shared": open_shared(tmp_path / "shm", clock=SystemClock())}
    async with near(url, tmp_path, tiers=tiers, **keys) as found:
        yield found


@pytest.mark.parametrize("format_", ["arrow", "parquet"])
async def test_a_stored_table_is_an_input(place: Near, format_: str) -> None:
    data = as_arrow(TABLE) if format_ == "arrow" else as_parquet(TABLE)
    ref = await place.put(data, encoding.get_media_type(format_))  # type: ignore[arg-type]  # both are forms
    opened = await StoredTables(place.store).open_table(ref)
    assert opened is not None
    assert opened.schema.names == TABLE.schema.names
    assert await place.rows(QUERY, ref, is_result=False) == ANSWER


@pytest.mark.parametrize("format_", ["arrow", "parquet"])
async def test_a_result_kept_as_a_table_is_an_input_without_its_rows(
    place: Near, format_: str
) -> None:
    raw = {"rows": TABLE.to_pylist(), "columns": TABLE.column_names, "row_count": 1000}
    kept = {"tasks": {"load": {"kind": "postgres", "raw": raw}}, "last": "load"}
    data = encoding.encode_table(kept, ("tasks", "load", "raw"), format_=format_)  # type: ignore[arg-type]  # both are forms
    assert data is not None
    ref = await place.put(data, encoding.get_media_type(format_))  # type: ignore[arg-type]  # as above
    assert await StoredTables(place.store).open_table(ref) is not None
    assert await place.rows(QUERY, ref, is_result=True) == ANSWER


@pytest.fixture
async def plain(tmp_path: Path) -> AsyncIterator[Near]:
    (tmp_path / "work").mkdir()
    async with near((tmp_path / "store").as_uri(), tmp_path) as found:
        yield found


async def spread_over(place: Near, format_: str, table: pa.Table = TABLE) -> PayloadRef:
    """Keep a table as Spark does: each part an object, and a result that names them."""
    write = as_arrow if format_ == "arrow" else as_parquet
    cut = [table.slice(start, 300) for start in range(0, table.num_rows, 300)]
    parts = [await place.put(write(item), encoding.get_media_type(format_)) for item in cut]  # type: ignore[arg-type]  # both are forms
    found = SpreadTable(
        row_count=table.num_rows,
        payload_bytes=GIBIBYTE,
        schema="",
        columns=table.schema.names,
        parts=parts,
    )
    raw = {"rows": spread_table.build_marker(found), "columns": table.schema.names}
    pipeline_result = PipelineResult(tasks={"t": TaskResult(kind="spark", raw=raw)}, last="t")
    ref = await place.put(codec.encode_json(pipeline_result), SPREAD_MEDIA_TYPE)
    # What a reader gets is the rows: more than would ever be decoded.
    return structs.replace(ref, payload_bytes=GIBIBYTE)


@pytest.mark.parametrize("format_", ["arrow", "parquet"])
async def test_a_table_in_parts_is_an_input_of_any_size(place: Near, format_: str) -> None:
    ref = await spread_over(place, format_)
    assert await place.rows(QUERY, ref, is_result=True) == ANSWER


async def test_parts_of_any_type_are_read_where_they_lie(plain: Near) -> None:
    table = pa.table({"at": pa.array([1_000_000] * 3, pa.timestamp("us", tz="UTC"))})
    ref = structs.replace(await spread_over(plain, "arrow", table), payload_bytes=1000)
    assert await StoredTables(plain.store).open_table(ref) is not None
    query = "SELECT DISTINCT o.at, typeof(o.at) AS kind FROM o"
    assert await plain.rows(query, ref, is_result=True) == [
        {"at": "1970-01-01T00:00:01+00:00", "kind": "TIMESTAMP WITH TIME ZONE"}
    ]


@pytest.mark.parametrize(
    "rows",
    [
        [{"i": 1, "o": {"a": 1}}, {"i": 2, "o": {"a": 2}}],
        [{"i": 1, "o": 1}, {"i": 2, "o": "two"}],
        [{"i": 1, "o": None}, {"i": 2, "o": None}],
    ],
)
async def test_columns_that_were_no_scalars_are_read_as_values(
    plain: Near, rows: list[dict[str, Any]]
) -> None:
    """What is text in the stored table is a mapping, or anything, in the value."""
    kept = {"tasks": {"t": {"kind": "python", "raw": {"rows": rows}}}, "last": "t"}
    data = encoding.encode_table(kept, ("tasks", "t", "raw"), format_="arrow")
    assert data is not None
    ref = await plain.put(data, ARROW_MEDIA_TYPE)
    assert await StoredTables(plain.store).open_table(ref) is None
    assert await plain.rows("SELECT sum(i) AS i FROM o", ref, is_result=True) == [{"i": 3}]


@pytest.mark.parametrize(
    "data", [codec.encode_json({"rows": [{"i": 1}]}), b"PAR1 but no more", b"\xff\xff\xff\xff torn"]
)
async def test_what_is_no_table_is_not_opened(plain: Near, data: bytes) -> None:
    for media_type in (ARROW_MEDIA_TYPE, PARQUET_MEDIA_TYPE, "application/json"):
        assert await StoredTables(plain.store).open_table(await plain.put(data, media_type)) is None


def anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell")


@pytest.fixture
def lent_folder() -> Iterator[None]:
    """Where files are lent without a disk tier: nothing of them may stay."""
    before = set(Path(tempfile.gettempdir()).glob("noetl-scratch-lent-*"))
    yield
    assert set(Path(tempfile.gettempdir()).glob("noetl-scratch-lent-*")) <= before


async def test_a_large_parquet_file_is_counted_in_little_memory(
    plain: Near, lent_folder: None, tmp_path: Path
) -> None:
    """150 MB of columns, of which one is asked for: what the query holds is not the table."""
    path = tmp_path / "large.parquet"
    part = pa.table({f"c{n}": pa.array(range(MEBIBYTE), pa.int64()) for n in range(3)})
    with pyarrow.parquet.ParquetWriter(path, part.schema) as writer:
        for _ in range(6):
            writer.write_table(part, row_group_size=128 * 1024)

    async def pieces() -> AsyncIterator[bytes]:
        with path.open("rb") as file:
            while piece := file.read(MEBIBYTE):
                yield piece

    ref = await plain.store.put_payload(
        pieces(),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=PARQUET_MEDIA_TYPE,
    )
    del part
    pa.default_memory_pool().release_unused()
    before = peak = anonymous()
    future = asyncio.ensure_future(plain.rows("SELECT sum(c1) AS s FROM o", ref, is_result=True))
    while not future.done():
        await asyncio.wait({future}, timeout=0.005)
        peak = max(peak, anonymous())
    assert future.result() == [{"s": 6 * sum(range(MEBIBYTE))}]
    assert peak - before < 90 * MEBIBYTE
