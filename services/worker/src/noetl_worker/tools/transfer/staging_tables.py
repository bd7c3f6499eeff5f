"""Tables beside a target of PostgreSQL, into which executors copy rows before they are its own."""

from collections.abc import Sequence

from msgspec import Struct

from noetl_chassis import identity
from noetl_playbook.templates.output_forms import sql_ident
from noetl_worker.spark.tables.store_access import StoreAddress
from noetl_worker.spark.task_request import CopyTarget
from noetl_worker.sql import queries
from noetl_worker.tools.postgres.postgres_session import PostgresSession
from noetl_worker.tools.tables import transfer_rows
from noetl_worker.tools.transfer.target_table import (
    StagedRows,
    TargetColumn,
    format_definitions,
    get_table,
    list_table_columns,
)

_QUERIES = queries.load_queries(__package__, "staging_tables")
_PREFIX = "noetl_staging_"
_KEY_CHARACTERS = 16


class TargetTable(Struct, frozen=True, kw_only=True):
    """The target: where it is, and what it can hold."""

    schema: str
    name: str
    columns: dict[str, TargetColumn]

    @property
    def quoted_name(self) -> str:
        """Return the name as SQL writes it."""
        return sql_ident([self.schema, self.name])


async def get_target(session: PostgresSession, table_name: object) -> TargetTable:
    """Return what the catalog has of a table; raises `ToolFailure`."""
    oid, _ = await get_table(session, transfer_rows.parse_table_parts(table_name))
    target = await session.connection.fetchrow(_QUERIES["name_of_table"], oid)
    assert target is not None, "the catalog has just told the table's identity"
    columns = await list_table_columns(session, oid)
    return TargetTable(schema=target["schema"], name=target["name"], columns=columns)


async def create_staging(session: PostgresSession, key: str, table: TargetTable) -> str:
    """Make the tables of this attempt, and remove those of earlier ones of the same `key`.

    What will come is not known yet, so there is a place for every column of the target.
    """
    start = _PREFIX + key[:_KEY_CHARACTERS]
    name = f"{start}_{identity.mint_token()[:8]}"
    connection = session.connection
    pattern = start.replace("_", r"\_") + "%"
    for row in await connection.fetch(_QUERIES["list_staging"], table.schema, pattern):
        await drop_table(session, table.schema, row["name"])
    columns = format_definitions(table.columns)
    await connection.execute(
        _QUERIES["make_staging"].format(staging=sql_ident([table.schema, name]), columns=columns)
    )
    done_table = sql_ident([table.schema, _name_done(name)])
    await connection.execute(_QUERIES["make_done"].format(done=done_table))
    return name


def build_copy_target(
    table: TargetTable,
    columns: Sequence[TargetColumn],
    staging: str,
    *,
    home: StoreAddress,
    credential: str,
) -> CopyTarget:
    """Say where executors copy the rows of some columns."""
    return CopyTarget(
        home=home,
        credential=credential,
        schema=table.schema,
        table=staging,
        done_table=_name_done(staging),
        columns={column.name: (column.stored_type, column.category) for column in columns},
        target=f"{table.schema}.{table.name}",
    )


def describe_staged_rows(
    table: TargetTable, columns: Sequence[TargetColumn], staging: str
) -> StagedRows:
    """Describe what was copied."""
    return StagedRows(
        table=table.quoted_name,
        staging=sql_ident([table.schema, staging]),
        columns=columns,
        target_columns=table.columns,
    )


async def drop_staging(session: PostgresSession, schema: str, staging: str) -> None:
    """Remove the tables of an attempt."""
    for name in (staging, _name_done(staging)):
        await drop_table(session, schema, name)


async def drop_table(session: PostgresSession, schema: str, name: str) -> None:
    """Remove a table, if it is there."""
    await session.connection.execute(_QUERIES["drop"].format(table=sql_ident([schema, name])))


def _name_done(staging: str) -> str:
    """Name the table that says which tasks have copied their rows."""
    return f"{staging}_done"
