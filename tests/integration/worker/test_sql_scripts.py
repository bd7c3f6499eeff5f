"""Scripts have the same outcome on their engine as a whole and cut into statements."""

from typing import Any

import asyncpg
import duckdb
import pytest
from tests.support.sql_corpus import read_scripts

from noetl_worker.sql.sql_statements import cut_statements

_NAMES = """
select c.relname::text from pg_class c join pg_namespace n on n.oid = c.relnamespace
where n.nspname = 'public'
union all
select p.proname::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
where n.nspname = 'public'
order by 1
"""


def _runnable(dialect: str) -> list[Any]:
    """Return the scripts that can run by themselves."""
    return [
        script
        for script in read_scripts(dialect)
        if "refused" not in script.values[1] and script.values[1].get("run", True)
    ]


async def _names(connection: asyncpg.Connection) -> list[str]:
    return [str(row[0]) for row in await connection.fetch(_NAMES)]


@pytest.mark.parametrize(("dialect", "script"), _runnable("postgres"))
async def test_postgres_does_the_same_by_statements(
    dialect: str, script: dict[str, Any], database: str
) -> None:
    connection = await asyncpg.connect(database)
    try:
        transaction = connection.transaction()
        await transaction.start()
        # Sent as one text, the server cuts it by itself.
        tag = await connection.execute(script["sql"])
        names = await _names(connection)
        await transaction.rollback()
        transaction = connection.transaction()
        await transaction.start()
        status = ""
        for statement in cut_statements(script["sql"], ""):
            # A prepared statement is one statement: the server refuses two.
            prepared = await connection.prepare(statement.text)
            await prepared.fetch()
            status = prepared.get_statusmsg()
        assert status == tag
        assert await _names(connection) == names
        await transaction.rollback()
    finally:
        await connection.close()


def _tables(connection: duckdb.DuckDBPyConnection) -> list[Any]:
    return connection.execute("select table_name from duckdb_tables() order by 1").fetchall()


@pytest.mark.parametrize(("dialect", "script"), _runnable("duckdb"))
def test_duckdb_does_the_same_by_statements(dialect: str, script: dict[str, Any]) -> None:
    texts = [statement.text for statement in cut_statements(script["sql"], "", "duckdb")]
    with duckdb.connect() as whole, duckdb.connect() as cut:
        expected = whole.execute(script["sql"]).fetchall()
        rows: list[Any] = []
        for text in texts:
            rows = cut.execute(text).fetchall()
        assert rows == expected
        assert _tables(cut) == _tables(whole)


@pytest.mark.parametrize(("dialect", "script"), _runnable("duckdb"))
def test_duckdb_finds_as_many_statements(dialect: str, script: dict[str, Any]) -> None:
    with duckdb.connect() as connection:
        parts = [
            len(connection.extract_statements(statement.text))
            for statement in cut_statements(script["sql"], "", "duckdb")
        ]
        assert sum(parts) == len(connection.extract_statements(script["sql"]))
        assert all(parts)
