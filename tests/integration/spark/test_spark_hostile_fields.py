"""Fields of a Spark task rendered to what nobody meant: an error with a kind, never a defect."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
from msgspec import structs
from tests.support.calls import call_of
from tests.support.hostile import HOSTILE, defect, spoilt
from tests.support.sparking import answered, spark_bench, spark_call, trusting
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
        # No test waits for the start of the session.
        await answered(found, spark_call(sql="SELECT 1 AS one"))
        yield found


async def defects(worker: Bench, some: list[dict[str, Any]]) -> list[str]:
    found = [await defect(worker, call_of("spark", fields, timeout_s=20)) for fields in some]
    return [item for item in found if item is not None]


async def find_different(
    worker: Bench, some: Iterable[dict[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    """Leave out fields that ask Spark for what others have asked for; return how many they were."""
    kept_fields: list[dict[str, Any]] = []
    requests, count = set(), 0
    for fields in some:
        request = None
        # What cannot be asked for ends without Spark.
        with suppress(Exception):
            request = await worker.tools.spark.open_once()._build_request(call_of("spark", fields))
        # Tables are not shown whole.
        shown = (
            None if request is None or request.inputs else repr(structs.replace(request, now=None))
        )
        if shown is None or shown not in requests:
            kept_fields.append(fields)
        else:
            count += 1
        requests.add(shown)
    return kept_fields, count


async def test_no_value_of_a_field_is_a_defect(worker: Bench) -> None:
    base = {"sql": "select :a as a", "session": {"master": None, "conf": {}}, "params": {"a": 1}}
    some = spoilt([base], sorted(KINDS["spark"].fields), inner=("session", "params"))
    different, repeated = await find_different(worker, some)
    assert len(different) > repeated > len(HOSTILE)
    found = await defects(worker, different)
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
    # A process is started for each, which takes a second: plain values go there together, and most
    # texts are compiled in tests/unit/worker/test_spark_main.py.
    plain = [value for value in HOSTILE if is_plain(value)]
    assert len(plain) > 30
    outcome = await trusted.tools.run(
        call_of("spark", {"code": inputs, "params": {"v": {"all": plain}}}, timeout_s=90)
    )
    assert outcome.error is None, outcome.error
    assert outcome.data == {"all": plain}
    alone = [value for value in HOSTILE if not is_plain(value)]
    alone += [None, True, 2**70, "", [], [None], {}, {"": {}}]
    some = [{"code": inputs, "params": {"v": value}} for value in alone]
    some += [{"code": value} for value in (5, "x", "", "a\x00b", "\ud800", "{{ x }}", "²")]
    found = await defects(trusted, some)
    assert not found, "\n".join(found)


def is_plain(value: Any) -> bool:
    """Tell whether JSON gives a value back as it is."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        text.encode()
    except (ValueError, UnicodeEncodeError):
        return False
    is_large = isinstance(value, int) and abs(value) >= 2**63
    return not is_large and bool(json.loads(text) == value)
