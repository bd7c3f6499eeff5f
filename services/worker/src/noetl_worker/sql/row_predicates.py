"""Conditions over the columns of one row, checked by a parser of SQL before an engine has them."""

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

# What looks at more than rows at hand, or is no expression.
REFUSED = {
    exp.Query: "a subquery",
    exp.SubqueryPredicate: "a subquery",
    exp.AggFunc: "an aggregate",
    exp.Window: "a window",
    exp.Placeholder: "a parameter",
    exp.Parameter: "a parameter",
    exp.Star: "'*'",
}

# What may say yes and no of the same row, or waits. Rows are judged more than once.
_VOLATILE_KINDS = (exp.Rand, exp.Randn, exp.Uuid)
_VOLATILE_NAMES = frozenset(
    {
        *("random", "setseed", "uuid", "uuidv4", "uuidv7", "gen_random_uuid"),
        *("nextval", "currval", "setval", "sleep_ms", "write_log", "stats", "vector_type"),
        *("current_query", "current_query_id", "current_transaction_id", "current_connection_id"),
    }
)


class PredicateRefused(Exception):  # noqa: N818 - it says what became of a text
    """A text is no condition over the columns of a row."""


def check_predicate(text: str, dialect: str) -> None:
    """Raise `PredicateRefused` for what is no condition over the columns of one row."""
    try:
        trees = sqlglot.parse(text, dialect=dialect)
    except SqlglotError as problem:
        raise PredicateRefused(f"it cannot be parsed: {str(problem).splitlines()[0]}") from problem
    except RecursionError as problem:
        raise PredicateRefused("it is nested too deeply") from problem
    for node in trees[0].walk() if trees[0] is not None else ():
        for kind, noun in REFUSED.items():
            if isinstance(node, kind):
                raise PredicateRefused(f"it holds {noun}, and looks at one row alone")
        if isinstance(node, _VOLATILE_KINDS) or (
            isinstance(node, exp.Anonymous) and node.name.lower() in _VOLATILE_NAMES
        ):
            raise PredicateRefused("it calls a function whose value differs from call to call")
    if len(trees) != 1 or not isinstance(trees[0], exp.Condition):
        raise PredicateRefused("it must be one condition, as in amount > 0")
