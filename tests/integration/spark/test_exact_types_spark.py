"""Every type into Spark and out of it: value for value equal, or refused by its column."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.support.attempting import data_of
from tests.support.sparking import answered, kept, spark_bench, spark_call
from tests.support.typed_values import VALUES, TypedValue
from tests.support.working import ORGANIZATION, TENANT, Bench

from noetl_contracts import codec, locators
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_playbook.model.playbook import Output
from noetl_playbook.views.results import PipelineResult, StoredResult, TaskResult

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

# Spark has no such type: it holds the value as the text that JSON has.
TEXTS = {"time64[us]", "month_day_nano_interval", "uuid"}
REFUSED = {
    *("39 digits", "hugeint", "wide decimal"),
    *("endless date", "endless moment ", "endless moment with a zone", "end of the day"),
    "nanoseconds",
}
TYPE_IN_SPARK = {
    **dict.fromkeys(TEXTS | {"json"}, "string"),
    "uint64": "decimal128(20, 0)",
    "timestamp[ns]": "timestamp[us]",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with spark_bench(tmp_path_factory.mktemp("spark")) as found:
        yield found


def table_of(values: list[TypedValue]) -> dict[str, Any]:
    """A table of one row, with a column for each value."""
    names = [f"v{place}" for place in range(len(values))]
    row = {name: value.json_form for name, value in zip(names, values, strict=True)}
    return {
        "columns": names,
        "types": [item.kind for item in values],
        "rows": [row],
        "row_count": 1,
    }


async def stored_table(worker: Bench, table: dict[str, Any]) -> dict[str, Any]:
    """Keep a table as a step's result, and return the `_ref` that templates see."""
    result = PipelineResult(tasks={"t": TaskResult(kind="postgres", raw=table)}, last="t")
    ref: PayloadRef = await worker.payloads.put_payload(
        codec.encode_json(result),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        media_type=JSON_MEDIA_TYPE,
        row_count=1,
    )
    return StoredResult(
        reference=ref, locator=locators.build_result_locator("1", "load", "1")
    ).as_mapping()


def shown(value: TypedValue) -> Any:
    """What Spark gives back."""
    if value.kind in TEXTS:
        return str(value.json_form)
    if value.kind == "uint64":
        return str(value.json_form)
    if value.kind == "json":
        return '{"a":[1,null]}'
    return value.json_form


FITTING = [value for value in VALUES if value.name not in REFUSED]


@pytest.mark.parametrize("way", ["along", "stored", "in parts"])
async def test_what_spark_holds_arrives_and_comes_back(worker: Bench, way: str) -> None:
    table = table_of(FITTING)
    source: Any = table if way == "along" else await stored_table(worker, table)
    if way == "in parts":
        in_parts = Output(inline_max_bytes=0)
        call = spark_call(sql="SELECT * FROM t", inputs={"t": source}, output=in_parts)
        source = await kept(worker, await answered(worker, call))
    found = await answered(worker, spark_call(sql="SELECT * FROM t", inputs={"t": source}))
    (row,) = found["rows"]
    for name, value, kind in zip(found["columns"], FITTING, found["types"], strict=True):
        assert row[name] == shown(value), value
        is_text = value.kind in TYPE_IN_SPARK
        assert kind == (TYPE_IN_SPARK[value.kind] if is_text else value.kind), value


@pytest.mark.parametrize("way", ["along", "stored"])
async def test_what_spark_does_not_hold_is_refused_by_its_column(worker: Bench, way: str) -> None:
    for value in VALUES:
        if value.name not in REFUSED:
            continue
        table = table_of([value])
        source: Any = table if way == "along" else await stored_table(worker, table)
        found = await worker.tools.run(spark_call(sql="SELECT * FROM t", inputs={"t": source}))
        assert found.error is not None, value
        assert found.error.kind == "schema", (value, found.error)
        assert "'v0'" in found.error.message, (value, found.error)


async def test_a_result_of_spark_keeps_its_types_in_duckdb(worker: Bench) -> None:
    sql = (
        "SELECT CAST(0.1 AS DECIMAL(10,2)) AS amount, TIMESTAMP '2026-03-29 01:30:00' AS seen_at "
        "UNION ALL SELECT CAST(0.2 AS DECIMAL(10,2)), NULL"
    )
    made = await answered(worker, spark_call(sql=sql))
    query = "SELECT sum(amount)::varchar AS total, typeof(max(seen_at)) AS kind FROM t"
    fields = {"query": query, "inputs": {"t": made}, "database": ":memory:"}
    found = await data_of(worker, "duckdb", fields)
    assert found["rows"] == [{"total": "0.30", "kind": "TIMESTAMP WITH TIME ZONE"}]


async def test_a_table_without_rows_has_types(worker: Bench) -> None:
    made = await answered(
        worker, spark_call(sql="SELECT CAST(1 AS DECIMAL(10,2)) AS n WHERE false")
    )
    assert (made["rows"], made["types"]) == ([], ["decimal128(10, 2)"])
