import pytest

from noetl_worker.sql.sql_statements import PlaceholderError, cut_statements, order_arguments


def texts(sql: str, style: str = "") -> list[str]:
    return [statement.text for statement in cut_statements(sql, style)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select 1; select 2", ["select 1", "select 2"]),
        ("select 1;;  ;", ["select 1"]),
        ("-- nothing\n/* at all */", []),
        ("select 'a;b', \"c;d\"", ["select 'a;b', \"c;d\""]),
        ("select 'it''s;'; select 2", ["select 'it''s;'", "select 2"]),
        ("select E'\\';'; select 2", ["select E'\\';'", "select 2"]),
        ("select $$a;b$$, $t$;$$;$t$; select 2", ["select $$a;b$$, $t$;$$;$t$", "select 2"]),
        ("select /* a /* ; */ ; */ 1; select 2", ["select /* a /* ; */ ; */ 1", "select 2"]),
        ("DO $do$ BEGIN x; END $do$; select 2", ["DO $do$ BEGIN x; END $do$", "select 2"]),
        (
            (
                "create function f() returns int begin atomic select 1;"
                " select case when true then 1 end; end; select 2"
            ),
            [
                (
                    "create function f() returns int begin atomic select 1;"
                    " select case when true then 1 end; end"
                ),
                "select 2",
            ],
        ),
    ],
)
def test_a_text_is_cut_at_the_semicolons_that_end_statements(sql: str, expected: list[str]) -> None:
    assert texts(sql) == expected


def test_without_params_nothing_of_the_text_is_touched() -> None:
    sql = "select '10%%', 5 % 3, x::int, :a, $1, %s -- :b"
    assert texts(sql) == [sql]


def test_names_become_numbers_except_in_quotes_casts_and_slices() -> None:
    (found,) = cut_statements("select :a::int, ':a', a[1:2], :b, :a, $$:c$$ /* :d */", "mapping")
    assert found.text == "select $1::int, ':a', a[1:2], $2, $1, $$:c$$ /* :d */"
    assert found.slots == ("a", "b")
    assert order_arguments(found, {"a": 1, "b": 2}) == [1, 2]


def test_older_names_and_percents_are_understood() -> None:
    (found,) = cut_statements("select %(a)s, 10%%3", "mapping")
    assert (found.text, found.slots) == ("select $1, 10%3", ("a",))


def test_positions_count_per_statement() -> None:
    first, second = cut_statements("select $2; select $1, $2, $1", "list")
    assert (first.text, first.slots) == ("select $1", (1,))
    assert (second.text, second.slots) == ("select $1, $2, $1", (0, 1))
    assert order_arguments(first, ["x", "y"]) == ["y"]


def test_unnumbered_places_take_the_values_in_order() -> None:
    first, second = cut_statements("select %s, %s; select %s", "list")
    assert order_arguments(first, [1, 2, 3]) == [1, 2]
    assert order_arguments(second, [1, 2, 3]) == [3]


def test_a_missing_parameter_is_named_with_those_that_exist() -> None:
    (found,) = cut_statements("select :nam", "mapping")
    with pytest.raises(PlaceholderError, match=r":nam, but params has only: name"):
        order_arguments(found, {"name": 1})
    (found,) = cut_statements("select $3", "list")
    with pytest.raises(PlaceholderError, match=r"\$3, but params holds 1 values"):
        order_arguments(found, [1])


@pytest.mark.parametrize(
    ("sql", "is_control", "is_outside"),
    [
        ("BEGIN", True, False),
        ("-- first\nCOMMIT", True, False),
        ("vacuum t", False, True),
        ("/* x */ CREATE DATABASE d", False, True),
        ("create unique index concurrently i on t (a)", False, True),
        ("drop index concurrently i", False, True),
        ("create index i on t (a)", False, False),
        ("select 'vacuum'", False, False),
    ],
)
def test_statements_that_need_no_transaction_are_recognised(
    sql: str, *, is_control: bool, is_outside: bool
) -> None:
    (found,) = cut_statements(sql, "")
    assert found.is_transaction_control is is_control
    assert found.is_outside_transactions is is_outside


@pytest.mark.parametrize(
    ("sql", "leaves"),
    [
        ("select 1", False),
        ("with a as (select 1) update t set b = 1", False),
        ("set search_path = x", True),
        ("select pg_advisory_lock(1)", True),
        ("create temp table t (a int)", True),
        ("select set_config('a.b', 'c', false)", True),
        ("listen c", True),
        ("select attempt, template from t", False),
        ("SELECT 1 INTO TEMP t", True),
        ("select * into temporary t from u", True),
        ("with a as (select * from dblink('d', 'q')) select 1", True),
    ],
)
def test_statements_that_may_leave_something_on_the_session_are_recognised(
    sql: str, *, leaves: bool
) -> None:
    (found,) = cut_statements(sql, "")
    assert found.leaves_session_state is leaves
