"""Parameters in errors of PostgreSQL, called as the task calls them."""

import pytest

from noetl_worker.sql import sql_statements
from noetl_worker.tools.postgres.task_fields import name_parameters

UNFIT = "parameter ${} is of type int4, which 'many' is not"


@pytest.mark.parametrize(
    ("query", "style", "place", "name"),
    [
        ("select :total, :id", "mapping", 2, ":id"),
        ("select %(total)s, %(id)s", "mapping", 1, ":total"),
        ("select $1, $2", "list", 2, "$2"),
        # The statement has one parameter, which is the second of the task.
        ("select $2", "list", 1, "$2"),
        ("select 1", "", 3, "$3"),
    ],
)
def test_a_parameter_is_called_as_in_the_task(
    query: str, style: str, place: int, name: str
) -> None:
    (statement,) = sql_statements.cut_statements(query, style)
    told = name_parameters(UNFIT.format(place), statement)
    assert told == f"parameter {name} is of type int4, which 'many' is not"


def test_what_is_no_parameter_stays() -> None:
    (statement,) = sql_statements.cut_statements("select :id", "mapping")
    text = "price is $1, could not determine data type of parameter $1"
    told = "price is $1, could not determine data type of parameter :id"
    assert name_parameters(text, statement) == told
