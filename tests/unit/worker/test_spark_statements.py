"""Spark SQL, cut into statements; which of them are views."""

import pytest

from noetl_worker.sql import lexer


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("SELECT 1", ("SELECT 1",)),
        (" SELECT 1 ; SELECT 2 ;; -- the end;\n", ("SELECT 1", "SELECT 2")),
        ("SELECT ';', \"a;b\", `c;d` -- e;f\n", ("SELECT ';', \"a;b\", `c;d` -- e;f",)),
        ("SELECT 'it\\'s; one' /* no; end */; SELECT 2", None),
        ("", ()),
        ("-- nothing; here", ()),
    ],
)
def test_semicolons_in_quotes_and_comments_end_nothing(
    text: str, statements: tuple[str, ...] | None
) -> None:
    spark_statements = lexer.cut_spark_statements(text)
    if statements is None:
        assert len(spark_statements) == 2
        assert spark_statements[1] == "SELECT 2"
    else:
        assert spark_statements == statements


@pytest.mark.parametrize(
    ("text", "view"),
    [
        ("CREATE TEMPORARY VIEW v AS SELECT :x", ("v", "SELECT :x")),
        ("create or replace temp view `a``b`\nas\nselect 1", ("a`b", "select 1")),
        ("-- few\nCREATE TEMP VIEW v AS (SELECT 1)", ("v", "(SELECT 1)")),
        ("CREATE GLOBAL TEMPORARY VIEW v AS SELECT 1", None),
        ("CREATE TEMP VIEW v USING csv OPTIONS (path '/x')", None),
        ("CREATE VIEW v AS SELECT 1", None),
        ("SELECT 1", None),
    ],
)
def test_only_temporary_views_of_a_query_are_views(text: str, view: tuple[str, str] | None) -> None:
    temporary_view = lexer.parse_temporary_view(text)
    assert (temporary_view and (temporary_view[0], temporary_view[1].strip())) == view
