"""Files that cannot be used: an error of the file, tried again only where that may help."""

import errno
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import pyarrow as pa
import pyarrow.parquet
import pytest
from tests.support.attempting import attempt, data_of, files_of
from tests.support.working import Bench, bench

from noetl_contracts.errors import ErrorObject
from noetl_worker.domain.failures import classify_file_error

ROWS = {"type": "data", "data": [{"id": 1}]}
TABLE = {"type": "postgres", "auth": "db", "table": "kept"}


@pytest.fixture
async def worker(tmp_path: Path, database: str) -> AsyncIterator[Bench]:
    connection = await asyncpg.connect(database)
    await connection.execute("create table kept(id int)")
    await connection.close()
    async with bench(work_directory=str(tmp_path)) as found:
        await found.put_credential("db", {"dsn": database})
        yield found


EXECUTION, ORGANIZATION = "", "noetl://files/"


@pytest.fixture(params=[EXECUTION, ORGANIZATION], ids=["execution", "organization"])
async def prefix(request: pytest.FixtureRequest, worker: Bench, tmp_path: Path) -> str:
    """What stands before the names of files: those of the execution, or of the organization."""
    param: str = request.param
    folder = files_of(tmp_path) if param else tmp_path / "made"
    fill(folder)
    if param == EXECUTION:
        for path in folder.rglob("*"):
            if path.is_file():
                name = str(path.relative_to(folder))
                await data_of(
                    worker,
                    "python",
                    {"code": WRITE},
                    given={"name": name, "data": b64encode(path.read_bytes()).decode()},
                )
    return param


WRITE = """
import base64, os
os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
open(name, "wb").write(base64.b64decode(data))
return 1
"""
LIST = "import os; return sorted(f'{at}/{name}' for at, _, names in os.walk('.') for name in names)"


def fill(folder: Path) -> None:
    (folder / "folder").mkdir(parents=True)
    (folder / "folder/inner.csv").write_text("id\n1\n")
    (folder / "file.csv").write_text("id\n1\n")
    (folder / "latin.csv").write_bytes("größe\n1\n".encode("latin-1"))
    (folder / "endless.csv").write_text("x" * 200_000)
    table = pa.table({"id": list(range(100_000))})
    pyarrow.parquet.write_table(table, folder / "torn.parquet", compression="zstd")
    with (folder / "torn.parquet").open("r+b") as file:
        file.seek(4)
        file.write(b"\xff" * 100)


@pytest.fixture
def list_files(worker: Bench, tmp_path: Path, prefix: str) -> Callable[[], Awaitable[list[str]]]:
    async def listed() -> list[str]:
        if prefix == EXECUTION:
            found: list[str] = await data_of(worker, "python", {"code": LIST})
            return found
        return sorted(str(path) for path in files_of(tmp_path).rglob("*"))

    return listed


def placed(end: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {**end, "uri": prefix + end["uri"]} if "uri" in end else end


async def refused(worker: Bench, kind: str, fields: dict[str, Any]) -> ErrorObject:
    found = await attempt(worker, kind, fields)
    assert found.error is not None, found.data
    return found.error


def file(uri: str, **fields: Any) -> dict[str, Any]:
    return {"type": "file", "uri": uri, **fields}


LASTING, WRONG = ("storage_access", False), ("parse", False)


@pytest.mark.parametrize(
    ("source", "target", "told", "words"),
    [
        (ROWS, file("folder", format="csv"), LASTING, "'folder' cannot be used: Is a directory"),
        (ROWS, file("folder", format="json", mode="replace"), LASTING, "Is a directory"),
        (ROWS, file("file.csv/rows.csv"), LASTING, "a part of its path is a file"),
        (ROWS, file("x" * 300 + ".csv"), LASTING, "File name too long"),
        (ROWS, file("latin.csv"), WRONG, "'latin.csv' does not read as csv"),
        (ROWS, file("endless.csv"), WRONG, "'endless.csv' does not read as csv"),
        (file("folder", format="csv"), TABLE, LASTING, "Is a directory"),
        (file("file.csv/rows.csv"), TABLE, LASTING, "a part of its path is a file"),
        (file("none.csv"), TABLE, ("not_found", False), "none.csv"),
        (file("latin.csv"), TABLE, WRONG, "'latin.csv' does not read as csv"),
        (file("torn.parquet"), TABLE, WRONG, "'torn.parquet' does not read as parquet"),
        (file("torn.parquet"), file("to.json"), WRONG, "'torn.parquet' does not read as parquet"),
    ],
)
async def test_a_transfer_says_what_is_wrong_with_the_file(
    worker: Bench,
    prefix: str,
    list_files: Callable[[], Awaitable[list[str]]],
    source: Any,
    target: Any,
    told: tuple[str, bool],
    words: str,
) -> None:
    before = await list_files()
    ends = {"source": placed(source, prefix), "target": placed(target, prefix)}
    error = await refused(worker, "transfer", ends)
    assert (error.kind, error.retryable) == told, error.message
    assert words in error.message
    assert await list_files() == before


@pytest.mark.parametrize("name", ["folder", "x" * 300])
@pytest.mark.parametrize("is_source", [True, False])
async def test_a_database_that_cannot_be_opened_is_an_error_of_duckdb(
    worker: Bench, prefix: str, name: str, *, is_source: bool
) -> None:
    end = {"type": "duckdb", "database": prefix + name, "query": "select 1 as id"}
    ends = {"source": end, "target": TABLE} if is_source else {"source": ROWS, "target": end}
    error = await refused(worker, "transfer", ends)
    assert (error.kind, error.code, error.retryable) == ("db_error", "DUCKDB", False)


async def test_a_database_below_a_file_is_an_error_of_the_file(worker: Bench, prefix: str) -> None:
    fields = {"query": "select 1", "database": f"{prefix}file.csv/some.db"}
    error = await refused(worker, "duckdb", fields)
    assert (error.kind, error.retryable) == LASTING
    assert "a part of its path is a file" in error.message


@pytest.mark.parametrize("query", [" ", "-- nothing\n"])
async def test_a_source_without_a_statement_is_refused(worker: Bench, query: str) -> None:
    ends = {"source": {"type": "duckdb", "query": query}, "target": TABLE}
    error = await refused(worker, "transfer", ends)
    assert (error.kind, error.message) == ("validation", "source.query holds no statement")


@pytest.mark.parametrize("params", [5, "text", True])
@pytest.mark.parametrize("kind", ["postgres", "duckdb"])
async def test_params_of_a_source_that_are_no_list_are_refused(
    worker: Bench, kind: str, params: Any
) -> None:
    source = {"type": kind, "auth": "db", "query": "select $1 as id", "params": params}
    error = await refused(worker, "transfer", {"source": source, "target": TABLE})
    assert (error.kind, error.retryable) == ("validation", False)
    assert "params must be a list or a mapping" in error.message


@pytest.mark.parametrize("action", ["get", "put", "delete"])
async def test_content_that_is_a_folder_is_not_asked_for_again(
    worker: Bench, prefix: str, action: str
) -> None:
    fields = {"action": action, "uri": f"{prefix}folder", "data": 1}
    error = await refused(worker, "artifact", fields)
    assert (error.kind, error.retryable) == LASTING


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EDQUOT])
def test_what_may_pass_is_tried_again(number: int) -> None:
    file_error = classify_file_error(OSError(number, "no"), "rows.csv", source="transfer")
    assert (file_error.kind, file_error.retryable, file_error.source) == (
        "storage_access",
        True,
        "transfer",
    )
