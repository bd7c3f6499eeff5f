"""Tables of PostgreSQL as its catalog has them."""

from msgspec import Struct

from noetl_playbook.templates.output_forms import sql_ident
from noetl_worker.sql import queries
from noetl_worker.tools.postgres.postgres_session import PostgresSession
from noetl_worker.tools.tables import transfer_rows

_QUERIES = queries.load_queries(__package__, "catalog_tables")
_ARRAY = "A"


class TargetColumn(Struct, frozen=True, kw_only=True):
    """A column of the target."""

    name: str
    type: str
    category: str

    @property
    def is_array(self) -> bool:
        """Tell whether a list becomes an array, and not JSON."""
        return self.category == _ARRAY


async def get_table(session: PostgresSession, parts: list[str]) -> tuple[int, list[str]]:
    """Return a table's identity and its name as the catalog has it; raises `ToolFailure`."""
    connection = session.connection
    for tried in (parts, [part.lower() for part in parts]):
        oid = await connection.fetchval(_QUERIES["find_table"], sql_ident(tried))
        if oid is not None:
            return int(oid), tried
    tables = await connection.fetch(_QUERIES["list_tables"])
    raise transfer_rows.build_unknown_failure(
        "table", ".".join(parts), [row["relname"] for row in tables]
    )


async def list_table_columns(session: PostgresSession, oid: int) -> dict[str, TargetColumn]:
    """Return the columns of a table by name."""
    found = await session.connection.fetch(_QUERIES["list_columns"], oid)
    return {
        row["attname"]: TargetColumn(
            name=row["attname"], type=row["type"], category=row["category"]
        )
        for row in found
    }


async def empty_table(session: PostgresSession, table: str) -> None:
    """Remove every row of a table, named as SQL names it."""
    await session.connection.execute(_QUERIES["empty"].format(table=table))
