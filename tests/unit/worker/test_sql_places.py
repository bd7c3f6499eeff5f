"""Where in a statement a database found a fault."""

from noetl_worker.sql.sql_statements import describe_fault_place


def test_a_position_is_a_line_and_a_column() -> None:
    assert describe_fault_place("SELECT\n  x", 10) == {
        "statement_text": "SELECT\n  x",
        "line": 2,
        "column": 3,
        "line_text": "x",
    }
    assert describe_fault_place("SELECT x", 1)["column"] == 1


def test_without_a_position_the_text_alone_is_told() -> None:
    assert describe_fault_place("SELECT x", None) == {"statement_text": "SELECT x"}
    assert describe_fault_place("SELECT x", 99) == {"statement_text": "SELECT x"}
    assert describe_fault_place("", 1) == {}


def test_long_texts_are_left_out_and_never_cut() -> None:
    long = "SELECT '" + "x" * 3_000 + "'\nFROM y"
    fault_place = describe_fault_place(long, len(long))
    assert fault_place == {"line": 2, "column": 6, "line_text": "FROM y"}
    assert describe_fault_place(long, 3) == {"line": 1, "column": 3}
