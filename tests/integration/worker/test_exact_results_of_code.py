"""What Python code and answers of HTTP give: numbers and tables as they are, or refused."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from tests.support.attempting import attempt, data_of
from tests.support.scripted import script
from tests.support.working import Bench, bench


@pytest.fixture
async def worker(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(work_directory=str(tmp_path)) as found:
        yield found


def says_bytes(body: bytes) -> Any:
    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    return answer


async def returned(worker: Bench, code: str) -> Any:
    return await data_of(worker, "python", {"code": code})


DECIMALS = """
import pyarrow as pa
from decimal import Decimal
return pa.table({'v': pa.array([Decimal('0.30')], pa.decimal128(10, 2))})
"""
MOMENTS = """
import pandas as pd
at = pd.Timestamp('2026-03-29T01:30:00.123456789', tz='UTC')
return pd.DataFrame({'v': [at], 'n': [float('nan')]}, index=[7])
"""


@pytest.mark.parametrize(
    ("code", "types", "row"),
    [
        (DECIMALS, ["decimal128(10, 2)"], {"v": 0.3}),
        (
            MOMENTS,
            ["timestamp[ns, tz=UTC]", "double"],
            {"v": "2026-03-29T01:30:00.123456789+00:00", "n": None},
        ),
    ],
)
async def test_tables_of_libraries_keep_their_types(
    worker: Bench, code: str, types: list[str], row: dict[str, Any]
) -> None:
    found = await returned(worker, code)
    assert (found["types"], found["rows"], found["row_count"]) == (types, [row], 1)
    inside = await returned(worker, code.replace("return ", "return {'t': ").rstrip() + "}")
    assert inside == {"t": found}


async def test_numbers_of_code_are_exact(worker: Bench) -> None:
    code = "return [2**63, 2**70, 2**53 + 1, -0.0, float('nan'), float('inf'), 'a\\0b']"
    found = await returned(worker, code)
    assert found == [2**63, str(2**70), 2**53 + 1, 0.0, "NaN", "Infinity", "a\0b"]
    assert str(found[3]) == "-0.0"


@pytest.mark.parametrize(
    ("result", "place"),
    [
        ("'\\ud800'", "does not hold: replace"),
        ("{'a': [{'name': 'x'}, {'name': '\\udfff'}]}", "(in result['a'][1]['name'])"),
        ("[{'k\\ud800': 1}]", "(in result[0])"),
    ],
)
async def test_half_of_a_surrogate_pair_is_refused_with_its_place(
    worker: Bench, result: str, place: str
) -> None:
    found = await attempt(worker, "python", {"code": f"return {result}"})
    assert found.error is not None
    assert "half of a surrogate pair" in found.error.message
    assert place in found.error.message
    assert await returned(worker, "return 1") == 1


async def test_numbers_of_an_answer_are_exact(worker: Bench) -> None:
    body = b'[1180591620717411303424, 9007199254740993.0, 1e400, 0.1, "a\\u0000"]'
    async with script() as server:
        server.answers(says_bytes(body))
        found = await data_of(worker, "http", {"url": server.url})
    assert found["body"] == [2**70, "9007199254740993.0", "1e400", 0.1, "a\0"]


TWICE = """
import pyarrow as pa
return pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=['a', 'a'])
"""
FRAME = """
import pandas as pd
return {'t': pd.DataFrame([[1, 2]], columns=['a', 'a'])}
"""


@pytest.mark.parametrize("code", [TWICE, TWICE.replace("[1]", "[]").replace("[2]", "[]"), FRAME])
async def test_a_table_with_a_column_name_twice_is_refused(worker: Bench, code: str) -> None:
    found = await attempt(worker, "python", {"code": code})
    assert found.error is not None
    assert "several columns named 'a': rename all but one" in found.error.message
