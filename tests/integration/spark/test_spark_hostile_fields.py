"""Fields of a Spark task rendered to what nobody meant: an error with a kind, never a defect."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from tests.support.calls import call_of
from tests.support.hostile import HOSTILE, defect, spoilt
from tests.support.sparking import spark_bench, trusting
from tests.support.working import Bench

from noetl_playbook.model.tools import KINDS

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

QUERY = {
    "auth": "postgres",
    "query": "select 1 as id",
    "partitions": 2,
    "partition_column": "id",
}
FILE = {"path": "a.csv", "format": "csv"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Bench]:
    async with spark_bench(tmp_path_factory.mktemp("spark")) as found:
        yield found


async def defects(worker: Bench, some: list[dict[str, Any]]) -> list[str]:
    found = [await defect(worker, call_of("spark", fields, timeout_s=20)) for fields in some]
    return [item for item in found if item is not None]


async def test_no_value_of_a_field_is_a_defect(worker: Bench) -> None:
    base = {"sql": "select :a as a", "session": {"master": None, "conf": {}}, "params": {"a": 1}}
    some = spoilt([base], sorted(KINDS["spark"].fields), inner=("session", "params"))
    found = await defects(worker, list(some))
    assert not found, "\n".join(found)


async def test_columns_without_a_type_are_stored_or_refused(worker: Bench) -> None:
    columns = {
        "null": None,
        "array()": [],
        "array(array())": [[]],
        "named_struct('a', null)": {"a": None},
    }
    for column, expected in columns.items():
        outcome = await worker.tools.run(
            call_of("spark", {"sql": f"select {column} as c"}, timeout_s=90)
        )
        assert outcome.error is None, (column, outcome.error)
        assert outcome.data["rows"] == [{"c": expected}]
    outcome = await worker.tools.run(call_of("spark", {"sql": "select map() as c"}, timeout_s=90))
    assert outcome.error is not None
    assert (outcome.error.kind, "column 'c'" in outcome.error.message) == ("schema", True)


async def test_no_value_in_an_input_is_a_defect(worker: Bench, database: str) -> None:
    await worker.put_credential("postgres", {"dsn": database})
    sources = [
        # Each value once in each kind of source, each key with several: a job takes a while.
        *(
            {**whole, sorted(whole)[place % len(whole)]: value}
            for whole in (QUERY, FILE)
            for place, value in enumerate(HOSTILE)
        ),
        *({**QUERY, "query": "select $1::text as id", "params": value} for value in HOSTILE),
        *({"table": value, "auth": "postgres"} for value in HOSTILE),
        *({"rows": value} for value in HOSTILE),
        *({"columns": value, "rows": [[1]]} for value in HOSTILE),
        *([{"id": value}, {"id": 1}] for value in HOSTILE),
        *HOSTILE,
    ]
    some = [{"sql": "select * from i", "inputs": {"i": source}} for source in sources]
    found = await defects(worker, some)
    assert not found, "\n".join(found)


async def test_no_value_of_a_function_is_a_defect(worker: Bench) -> None:
    trusted = trusting(worker)
    inputs = "def main(spark, inputs, params):\n    return params['v']"
    # Each second value: a process is started for each, which takes seconds.
    some = [{"code": inputs, "params": {"v": value}} for value in HOSTILE[::2]]
    some += [{"code": value} for value in HOSTILE]
    found = await defects(trusted, some)
    assert not found, "\n".join(found)
