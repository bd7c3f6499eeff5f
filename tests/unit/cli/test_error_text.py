"""What a person reads of an error."""

from noetl_cli.terminal.error_text import format_error_lines
from noetl_cli.terminal.progress_tracker import format_error

ERROR = {
    "kind": "transform",
    "message": "'missing'",
    "exception_type": "KeyError",
    "source": "python",
    "step": "read",
    "task": "read_task",
    "details": {
        "line": 5,
        "line_text": 'return rows["missing"]',
        "traceback": (
            "Traceback (most recent call last):\n"
            '  File "<code>", line 5, in <module>\n'
            '    return rows["missing"]\n'
            "KeyError: 'missing'\n"
        ),
    },
}


def test_an_error_shows_its_place_its_message_and_the_traceback() -> None:
    assert format_error_lines(ERROR) == [
        "error in step read: transform: KeyError: 'missing' (line 5: return rows[\"missing\"])",
        "  In the code of the task, most recent call last:",
        '    File "<code>", line 5, in <module>',
        '      return rows["missing"]',
        "  KeyError: 'missing'",
    ]


def test_the_task_is_named_when_it_is_not_the_step() -> None:
    (line,) = format_error_lines(
        {"kind": "db_error", "message": "no", "task": "insert"}, step="load"
    )
    assert line == "error in step load, task insert: db_error: no"


def test_a_code_of_postgresql_is_shown() -> None:
    (line,) = format_error_lines({"kind": "db_constraint", "message": "no", "code": "PG_23505"})
    assert line == "error: db_constraint: no [PG_23505]"


def test_the_attempts_before_an_error_are_shown_and_that_earlier_ones_are_not_kept() -> None:
    tries = [
        {
            "task": "fetch",
            "attempt": number,
            "at": f"2026-11-27T00:00:0{number}Z",
            "kind": "server_error",
            "message": "busy",
        }
        for number in (2, 3)
    ]
    assert format_error_lines({"kind": "server_error", "message": "busy", "tries": tries}) == [
        "  (attempts before 2 are not kept)",
        "  fetch, attempt 2 at 00:00:02: server_error: busy",
        "  fetch, attempt 3 at 00:00:03: server_error: busy",
        "error: server_error: busy",
    ]


def test_an_error_moves_no_cursor_and_a_long_traceback_says_what_it_leaves_out() -> None:
    trace = "\n".join(f"  line {index}\x1b[2J" for index in range(100))
    lines = format_error_lines(
        {"kind": "k", "message": "m\x1b[2J", "details": {"traceback": trace}}
    )
    assert not [line for line in lines if "\x1b" in line]
    assert lines[1] == "  (60 lines of the traceback are left out)"
    assert lines[-1].startswith("    line 99")


def test_the_place_in_a_statement_stands_below_what_duckdb_says_once() -> None:
    said = 'Parser Error: syntax error at or near "t"'
    error = {
        "kind": "db_error",
        "message": f"{said}\n\nLINE 2: FORM t\n             ^",
        "source": "duckdb",
    }
    assert format_error_lines(error, step="q") == [
        f"error in step q: db_error: {said}",
        "  LINE 2: FORM t",
        "               ^",
    ]
    assert format_error(error) == f"db_error: {said}"
