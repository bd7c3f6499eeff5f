"""The spark tool on a real session: SQL and functions over stored inputs, results by reference."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from tests.support.sparking import answered, spark_bench, spark_call, stored
from tests.support.working import Bench, command_of

from noetl_contracts import spread
from noetl_contracts.facts import CommandCompleted

pytestmark = pytest.mark.asyncio(loop_scope="module")

ORDERS = [{"id": i, "region": "east" if i % 3 else "west", "amount": i * 0.5} for i in range(3_000)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with spark_bench(tmp_path_factory.mktemp("spark")) as found:
        yield found


async def test_queries_read_stored_results_and_give_small_ones_inline(worker: Bench) -> None:
    orders = await stored(worker, ORDERS)
    given = await answered(
        worker,
        spark_call(
            sql="CREATE TEMPORARY VIEW few AS SELECT * FROM o WHERE id < :most; "
            "SELECT f.region, r.head, count(*) AS n, sum(amount) AS total "
            "FROM few f JOIN r USING (region) GROUP BY ALL ORDER BY 1",
            inputs={"o": orders, "r": [{"region": "east", "head": "Ann"}]},
            params={"most": 9},
        ),
    )
    assert given == {
        "rows": [{"region": "east", "head": "Ann", "n": 6, "total": 13.5}],
        "row_count": 1,
        "columns": ["region", "head", "n", "total"],
        "statement_count": 2,
        "status": "ok",
    }


async def test_large_results_stay_in_the_store_in_parts(worker: Bench) -> None:
    orders = await stored(worker, ORDERS)
    step = """
  - step: split
    tool:
      kind: spark
      inputs: {o: "{{ workload.orders }}"}
      sql: SELECT *, timestamp'2026-01-02 03:04:05' AS at FROM o ORDER BY id
      output: {format: parquet, partition_by: [region]}
"""
    (*_, done) = await worker.run(command_of(step, workload={"orders": orders}))
    assert isinstance(done, CommandCompleted), done
    result = done.result
    assert result.reference is not None
    assert result.reference.media_type == spread.SPREAD_MEDIA_TYPE
    assert result.reference.row_count == 3_000
    assert result.context["columns"] == ["id", "region", "amount", "at"]
    found = await worker.value(result)
    assert {row["region"] for row in found["rows"]} == {"east", "west"}
    assert sum(row["amount"] for row in found["rows"]) == sum(one["amount"] for one in ORDERS)
    assert found["rows"][0]["at"] == "2026-01-02T03:04:05+00:00"
