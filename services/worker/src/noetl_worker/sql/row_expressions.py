"""Expressions over the columns of two rows, `target` and `source`, checked by a parser of SQL."""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from noetl_contracts import spelling
from noetl_playbook.templates.output_forms import sql_ident
from noetl_worker.sql import lexer
from noetl_worker.sql.row_predicates import REFUSED

TARGET, SOURCE = "target", "source"


class ExpressionRefused(Exception):  # noqa: N818 - it says what became of an expression
    """A text is no expression over `target` and `source`."""


def write_expression(
    text: str, columns: Mapping[str, Collection[str]], aliases: Mapping[str, str]
) -> str:
    """Return an expression with quoted columns, and the two rows under their aliases.

    `columns` are those of each row, and `aliases` its name in the statement, both by `target` and
    `source`. Raises `ExpressionRefused`.
    """
    _check_tree(_parse_text(text), columns)
    return "".join(_write_parts(text, columns, aliases))


def _parse_text(text: str) -> exp.Condition:
    try:
        trees = sqlglot.parse(text, dialect="postgres")
    except SqlglotError as problem:
        raise ExpressionRefused(f"it cannot be parsed: {str(problem).splitlines()[0]}") from problem
    if len(trees) != 1 or not isinstance(trees[0], exp.Condition):
        raise ExpressionRefused("it must be one expression, as in target.total + source.total")
    return trees[0]


def _check_tree(tree: exp.Condition, columns: Mapping[str, Collection[str]]) -> None:
    for node in tree.walk():
        for kind, noun in REFUSED.items():
            if isinstance(node, kind):
                raise ExpressionRefused(f"it holds {noun}, and looks at the two rows alone")
        if isinstance(node, exp.Column):
            _check_column(node, columns)


def _check_column(node: exp.Column, columns: Mapping[str, Collection[str]]) -> None:
    row = node.table.lower()
    if row not in columns or node.args.get("db") is not None:
        text = f"column '{node.sql()}' must begin with {TARGET}. or {SOURCE}."
        raise ExpressionRefused(text)
    identifier = node.this
    if isinstance(identifier, exp.Star):
        raise ExpressionRefused("it holds '*': name the column")
    name = identifier.name if identifier.quoted else identifier.name.lower()
    if name not in columns[row]:
        hint = spelling.suggest_or_list(name, columns[row], label="known:")
        raise ExpressionRefused(f"the {row} has no column '{name}': {hint}")


def _write_parts(
    text: str, columns: Mapping[str, Collection[str]], aliases: Mapping[str, str]
) -> Iterator[str]:
    tokens: list[Any] = lexer.read_tokens(text, "postgres")
    end = 0
    for row, point, column in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if row.word not in columns or point.raw != ".":
            continue
        is_quoted = column.raw.startswith('"')
        name = column.raw[1:-1].replace('""', '"') if is_quoted else column.word
        yield text[end : row.start]
        yield f"{aliases[row.word]}.{sql_ident(name)}"
        end = column.end
    yield text[end:]
