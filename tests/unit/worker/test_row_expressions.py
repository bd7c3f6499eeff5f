"""Expressions over a target's and a source's row: what passes, as what, and what is refused."""

import pytest

from noetl_worker.sql.row_expressions import ExpressionRefused, write_expression

COLUMNS = {"target": ["total", "A b", "at"], "source": ["total", "n"]}
ALIASES = {"target": "target", "source": "excluded"}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("target.total + source.total", 'target."total" + excluded."total"'),
        ("coalesce(SOURCE.N, 0) -- n", 'coalesce(excluded."n", 0) -- n'),
        ("target.\"A b\" || 'source.n'", "target.\"A b\" || 'source.n'"),
        ("now()", "now()"),
        ("case when source.n > 0 then 1 end", 'case when excluded."n" > 0 then 1 end'),
        (
            "target.at at time zone 'UTC' - interval '1 day'",
            "target.\"at\" at time zone 'UTC' - interval '1 day'",
        ),
    ],
)
def test_columns_are_quoted_and_the_rest_stays(text: str, written: str) -> None:
    assert write_expression(text, COLUMNS, ALIASES) == written


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("total + 1", "must begin with target. or source."),
        ("public.target.total", "must begin with"),
        ("target", "must begin with"),
        ("target.totl", "did you mean 'total'"),
        ("source.at", "the source has no column 'at'"),
        ('target."TOTAL"', "no column 'TOTAL'"),
        ("source.*", "'*'"),
        ("target.total in (select 1)", "a subquery"),
        ("array(select 1)", "a subquery"),
        ("exists (select 1)", "a subquery"),
        ("sum(source.n)", "an aggregate"),
        ("count(*)", "an aggregate"),
        ("row_number() over ()", "a window"),
        ("$1", "a parameter"),
        (":name", "a parameter"),
        ("(select 1)", "one expression"),
        ("1; 2", "one expression"),
        ("drop table t", "one expression"),
        ("target.total) , x = (1", "cannot be parsed"),
        ("'open", "cannot be parsed"),
        ("", "one expression"),
    ],
)
def test_what_looks_past_the_two_rows_is_refused(text: str, said: str) -> None:
    with pytest.raises(ExpressionRefused) as refused:
        write_expression(text, COLUMNS, ALIASES)
    assert said in str(refused.value)
