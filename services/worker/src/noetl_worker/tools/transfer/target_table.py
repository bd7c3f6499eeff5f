"""Tables of PostgreSQL as targets: what the catalog has of them, and how staged rows get in."""

import importlib
from collections.abc import Sequence

from msgspec import Struct

from noetl_playbook.templates.output_forms import sql_ident
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.sql import queries
from noetl_worker.tools.postgres.postgres_session import PostgresSession
from noetl_worker.tools.tables import transfer_rows
from noetl_worker.tools.tables.transfer_rows import TransferAim

_QUERIES = queries.load_queries(__package__, "target_table")
# The first release that has MERGE.
_MERGE_RELEASE = 15
_ARRAY = "A"


class TargetColumn(Struct, frozen=True, kw_only=True):
    """A column of the target; `stored_type` is that of its domain's values, else its `type`."""

    name: str
    type: str
    stored_type: str
    category: str

    @property
    def is_array(self) -> bool:
        """Tell whether a list becomes an array, and not JSON."""
        return self.category == _ARRAY


class StagedRows(Struct, frozen=True, kw_only=True):
    """Rows that wait in a table of the target's types; `columns` are those that they fill.

    `table` and `staging` are names as SQL writes them; `target_columns` are all of the target's.
    """

    table: str
    staging: str
    columns: Sequence[TargetColumn]
    target_columns: dict[str, TargetColumn]

    @property
    def names(self) -> list[str]:
        """Return the names of the columns that the rows fill."""
        return [column.name for column in self.columns]


async def write_staged_rows(
    session: PostgresSession, staged_rows: StagedRows, aim: TransferAim
) -> int:
    """Write what was staged into its table, and return how many rows were written or changed.

    It must stand in a transaction. Raises `ToolFailure`.
    """
    text = build_statement(staged_rows, aim)
    if aim.is_merge:
        await check_keys(session, staged_rows, aim)
    if aim.mode == "merge":
        release = session.connection.get_server_version().major
        if release < _MERGE_RELEASE:
            text = f"mode merge needs PostgreSQL {_MERGE_RELEASE}, this is {release}: use upsert"
            raise ToolFailure(build_error("config", text, source="transfer"))
        await session.connection.execute(_QUERIES["lock"].format(table=staged_rows.table))
    status = await session.connection.execute(text)
    return int(status.rpartition(" ")[2])


def build_statement(staged_rows: StagedRows, aim: TransferAim) -> str:
    """Write the statement of a mode; raises `ToolFailure` for a wrong key or expression."""
    names = staged_rows.names
    keys = transfer_rows.list_keys(aim, names) if aim.mode in transfer_rows.KEYED_MODES else []
    new_row = "source" if aim.mode == "merge" else "excluded"
    changes = {name: f"{new_row}.{sql_ident(name)}" for name in names if name not in keys}
    changes |= _write_expressions(staged_rows, aim, keys, new_row)
    form = "merge" if aim.mode == "merge" else "upsert"
    form = "append" if not keys else form if changes else f"{form}_keys"
    rows = staged_rows.staging
    if keys and not aim.is_merge:
        rows = _QUERIES["latest"].format(keys=transfer_rows.quote_names(keys), staging=rows)
    return _QUERIES[form].format(
        table=staged_rows.table,
        rows=rows,
        columns=transfer_rows.quote_names(names),
        keys=transfer_rows.quote_names(keys),
        values=", ".join(f"source.{sql_ident(name)}" for name in names),
        matches=" and ".join(f"target.{sql_ident(key)} = source.{sql_ident(key)}" for key in keys),
        changes=", ".join(f"{sql_ident(name)} = {value}" for name, value in changes.items()),
    )


def _write_expressions(
    staged_rows: StagedRows, aim: TransferAim, keys: list[str], new_row: str
) -> dict[str, str]:
    """Write the expressions of `set`, each checked; raises `ToolFailure`."""
    if not aim.expressions:
        return {}
    # The library behind it takes half a second to load, and few transfers need it.
    expressions = importlib.import_module("noetl_worker.sql.row_expressions")
    columns = {"target": staged_rows.target_columns, "source": staged_rows.names}
    aliases = {"target": "target", "source": new_row}
    expression_by_column = {}
    for column, text in aim.expressions.items():
        transfer_rows.check_columns([column], staged_rows.target_columns, staged_rows.table)
        if column in keys:
            raise _build_refusal(f"set cannot change '{column}', which is a key")
        try:
            expression = expressions.write_expression(text, columns, aliases)
        except expressions.ExpressionRefused as problem:
            raise _build_refusal(f"set of column '{column}': {problem}") from problem
        # The line break ends a comment.
        expression_by_column[column] = f"({expression}\n)"
    return expression_by_column


async def check_keys(session: PostgresSession, staged_rows: StagedRows, aim: TransferAim) -> None:
    """Refuse rows without a key, and several of one key: only the author can say what they mean."""
    keys = transfer_rows.list_keys(aim, staged_rows.names)
    parts = {
        "staging": staged_rows.staging,
        "keys": transfer_rows.quote_names(keys),
        "texts": ", ".join(f"{sql_ident(key)}::text as {sql_ident(key)}" for key in keys),
        "absent": " or ".join(f"{sql_ident(key)} is null" for key in keys),
    }
    for name, problem in (
        ("find_missing", "a row of the source has no whole key"),
        ("find_repeated", "several rows of the source have the key"),
    ):
        row = await session.connection.fetchrow(_QUERIES[name].format(**parts))
        if row is not None:
            key_text = ", ".join(f"{key} = {value}" for key, value in row.items())
            text = (
                f"{problem} ({key_text:.200}): aggregate or filter the source, so that each "
                "key is once"
            )
            raise ToolFailure(build_error("schema", text, source="transfer"))


async def create_staging(
    session: PostgresSession, name: str, target_columns: dict[str, TargetColumn]
) -> None:
    """Make a table for rows that ends with the transaction."""
    await session.connection.execute(
        _QUERIES["stage"].format(staging=name, columns=format_definitions(target_columns))
    )


def format_definitions(columns: dict[str, TargetColumn]) -> str:
    """Write the definitions of columns of the target's types, each of which may be absent."""
    return ", ".join(
        f"{sql_ident(column.name)} {column.stored_type}" for column in columns.values()
    )


def _build_refusal(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source="transfer"))


async def get_table(session: PostgresSession, parts: list[str]) -> tuple[int, list[str]]:
    """Return a table's identity and its name as the catalog has it; raises `ToolFailure`."""
    connection = session.connection
    for name_parts in (parts, [part.lower() for part in parts]):
        oid = await connection.fetchval(_QUERIES["find_table"], sql_ident(name_parts))
        if oid is not None:
            return int(oid), name_parts
    tables = await connection.fetch(_QUERIES["list_tables"])
    raise transfer_rows.build_unknown_failure(
        "table", ".".join(parts), [row["relname"] for row in tables]
    )


async def list_table_columns(session: PostgresSession, oid: int) -> dict[str, TargetColumn]:
    """Return the columns of a table by name."""
    table_columns = await session.connection.fetch(_QUERIES["list_columns"], oid)
    return {
        row["attname"]: TargetColumn(
            name=row["attname"],
            type=row["type"],
            stored_type=row["stored_type"],
            category=row["category"],
        )
        for row in table_columns
    }


async def empty_table(session: PostgresSession, table: str) -> None:
    """Remove every row of a table, named as SQL names it."""
    await session.connection.execute(_QUERIES["empty"].format(table=table))
