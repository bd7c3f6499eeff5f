"""How a query or table is read: its columns, and the conditions that share its rows among tasks.

A plan is made once, by the connection that exports the snapshot, and travels to executors as text.
"""

from itertools import pairwise
from typing import Any

from msgspec import Struct

from noetl_contracts import codec, spelling
from noetl_playbook.templates.output_forms import sql_ident, sql_literal
from noetl_worker.domain import text_values
from noetl_worker.spark.postgres import partition_ranges, read_columns
from noetl_worker.spark.postgres.partition_ranges import TableShape
from noetl_worker.spark.postgres.read_columns import ReadColumn
from noetl_worker.spark.postgres.read_request import ReadRequest
from noetl_worker.spark.postgres.server_connection import ArrowSession
from noetl_worker.spark.tables.store_access import SparkRefusal
from noetl_worker.sql import lexer, queries
from noetl_worker.sql.lexer import Token

_QUERIES = queries.load_queries(__package__, "read_plan")
# Rows that these leave depend on the order in which the server happens to read.
_CUTTING = frozenset({"limit", "offset", "fetch", "tablesample"})
# Functions that are called without parentheses; each transaction has its own values of them.
_CURRENT = frozenset(
    {"current_timestamp", "current_time", "current_date", "localtime", "localtimestamp"}
)
_VOLATILE, _IMMUTABLE, _PLAIN = "v", "i", "f"
# What stays as it is under one snapshot: tables and stored views, no views, no foreign tables.
_STORED = frozenset({"r", "p", "m"})


class ReadPlan(Struct, frozen=True, kw_only=True):
    """What executors run: `select columns from source where condition`, once a condition.

    `is_steady` tells that each run of it under the snapshot gives the same rows.
    """

    about: str
    source: str
    columns: list[ReadColumn]
    conditions: list[str]
    snapshot: str
    is_steady: bool

    def build_statement(self, condition: str) -> str:
        """Write what one task runs."""
        return _QUERIES["range"].format(
            columns=read_columns.format_selections(self.columns),
            source=self.source,
            condition=condition,
        )


def plan_read(
    session: ArrowSession, request: ReadRequest, *, snapshot: str, about: str
) -> ReadPlan:
    """Describe how a request is read; raises `SparkRefusal`."""
    shape = None if request.table is None else _get_table(session, request.table, about)
    query = _write_values(session, request, about)
    schema = session.describe_query(query)
    oids = read_columns.list_nameless_oids(schema)
    columns = read_columns.list_columns(schema, _find_arrays(session, oids), about=about)
    source = f"({query}\n) as source" if shape is None else f"{shape.quoted_name} as source"
    moving = None if shape is not None else _find_moving_part(session, query)
    conditions = [partition_ranges.WHOLE]
    if request.partitions != 1:
        partial = moving if shape is not None else _find_partial_part(session, query)
        if partial is not None:
            text = (
                f"{about}: the query has {partial}, so that partitions of it would see different "
                "rows: leave 'partitions' out, or make the rows the same at each run"
            )
            raise SparkRefusal("validation", text)
        conditions = partition_ranges.cut_rows(
            session, request.partitions, source, columns, shape, column=request.column, about=about
        )
    is_steady = shape.kind in _STORED and not shape.has_policies if shape else moving is None
    return ReadPlan(
        about=about,
        source=source,
        columns=columns,
        conditions=conditions,
        snapshot=snapshot,
        is_steady=is_steady,
    )


def encode_plan(plan: ReadPlan) -> str:
    """Write a plan as an option of a data source."""
    return codec.encode_text(plan)


def decode_plan(text: str) -> ReadPlan:
    """Read what `encode_plan` wrote."""
    return codec.decode_as(text.encode(), ReadPlan)


def _get_table(session: ArrowSession, parts: list[str], about: str) -> TableShape:
    """Look a table up; raises `SparkRefusal` that suggests the nearest name."""
    quoted_name = sql_literal(sql_ident(parts))
    rows = session.fetch_rows(_QUERIES["describe_table"].format(table=quoted_name))
    if rows:
        row = rows[0]
        return TableShape(
            quoted_name=sql_ident([row["schema"], row["name"]]),
            kind=row["kind"],
            page_count=row["page_count"] or 0,
            page_bytes=row["page_bytes"],
            has_pages=bool(row["has_pages"]),
            has_policies=row["has_policies"],
        )
    table_names = [row["name"] for row in session.fetch_rows(_QUERIES["list_tables"])]
    hint = spelling.suggest_or_list(parts[-1], table_names, label="known:")
    raise SparkRefusal("validation", f"{about}: there is no table '{'.'.join(parts)}': {hint}")


def _find_arrays(session: ArrowSession, oids: list[int]) -> frozenset[int]:
    if not oids:
        return frozenset()
    oid_list = ", ".join(map(str, oids))
    rows = session.fetch_rows(_QUERIES["list_arrays"].format(oids=oid_list))
    return frozenset(row["oid"] for row in rows)


def _write_values(session: ArrowSession, request: ReadRequest, about: str) -> str:
    """Write a request's values into its query: `COPY` takes no parameters."""
    if not request.values:
        return request.query
    session.run_statement(_QUERIES["prepare"].format(query=request.query))
    (row,) = session.fetch_rows(_QUERIES["list_parameters"])
    session.run_statement(_QUERIES["deallocate"])
    try:
        literals = [
            _write_value(value, kind)
            for value, kind in zip(request.values, row["types"], strict=False)
        ]
    except ValueError as problem:
        text = f"{about}: a value of 'params' cannot be written: {problem}"
        raise SparkRefusal("validation", text) from problem
    parts, end = [], 0
    for token in lexer.read_tokens(request.query, "postgres"):
        if token.word.startswith("$") and token.raw[1:].isdigit():
            parts += [request.query[end : token.start], literals[int(token.raw[1:]) - 1]]
            end = token.end
    return "".join([*parts, request.query[end:]])


def _write_value(value: Any, kind: str) -> str:
    """Write a value as a literal of a parameter's type, which the server names."""
    if value is None:
        return f"(null::{kind})"
    if isinstance(value, list) and kind.endswith("[]"):
        text = text_values.format_array_literal(value)
    else:
        text = text_values.format_text(value)
    literal = sql_literal(text)
    return f"decode({literal}, 'base64')" if kind == "bytea" else f"({literal}::{kind})"


def _find_moving_part(session: ArrowSession, query: str) -> str | None:
    """Return what may give other rows or values at each run, None for what cannot.

    These are functions whose values are not those of their arguments alone, aggregates and
    windows, whose values may depend on the order of rows, and views, whose own words are not
    looked at.
    """
    tokens = lexer.read_tokens(query, "postgres")
    words = [token.word for token in tokens]
    for word in (*sorted(_CUTTING | _CURRENT), "over"):
        if word in words:
            return word.upper()
    if ("distinct", "on") in pairwise(words):
        return "DISTINCT ON"
    for function in _list_functions(session, tokens):
        if function["volatility"] != _IMMUTABLE or function["kind"] != _PLAIN:
            return f"{function['name']}()"
    views = _find_views(session, tokens)
    return f"the view {views[0]['name']}" if views else None


def _find_partial_part(session: ArrowSession, query: str) -> str | None:
    """Return what would let parts of a query see different rows, None when nothing does."""
    tokens = lexer.read_tokens(query, "postgres")
    words = {token.word for token in tokens}
    if "tablesample" in words:
        return "TABLESAMPLE"
    if words & _CUTTING and "order" not in words:
        return "LIMIT without ORDER BY"
    for function in _list_functions(session, tokens):
        if function["volatility"] == _VOLATILE:
            return f"{function['name']}()"
    return None


def _list_functions(session: ArrowSession, tokens: list[Token]) -> list[dict[str, Any]]:
    """Return what the catalog has of each name that stands before a parenthesis."""
    names = {
        name
        for token, following in pairwise(tokens)
        if following.raw == "(" and (name := _read_name(token))
    }
    if not names:
        return []
    return session.fetch_rows(_QUERIES["list_functions"].format(names=_list_literals(names)))


def _find_views(session: ArrowSession, tokens: list[Token]) -> list[dict[str, Any]]:
    names = {name for token in tokens if (name := _read_name(token))}
    return session.fetch_rows(_QUERIES["find_views"].format(names=_list_literals(names)))


def _read_name(token: Token) -> str:
    """Return the name that a token is as the catalog has it, "" for none."""
    return token.raw[1:-1].replace('""', '"') if token.raw.startswith('"') else token.word


def _list_literals(names: set[str]) -> str:
    return ", ".join(sql_literal(name) for name in sorted(names))
