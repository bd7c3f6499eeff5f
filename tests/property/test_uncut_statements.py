"""A text with nothing to cut is the same statement as with a semicolon behind it."""

from hypothesis import event, given
from hypothesis import strategies as st

from noetl_worker.domain.failures import ToolFailure
from noetl_worker.sql.sql_statements import cut_statements

_PIECES = st.sampled_from(
    [
        *("select", "SELECT", "with a as (", "insert into t", "update t set", "begin", "commit"),
        *(
            "copy t from stdin",
            "vacuum",
            "set x = 1",
            "create temp table t",
            "selection",
            "(select",
        ),
        *("end", "case", "atomic", "temp", "TEMP", "template", "set_config('a', 'b', false)"),
        *("pg_advisory_lock(1)", "$$ body $$", "$t$", "'text'", "'it''s'", '"Name"', "E'\\''"),
        *(
            "-- a line\n",
            "/* a /* nested */ block */",
            ":a",
            "$1",
            "%s",
            "x::int",
            "1.5",
            "\n",
            ",",
        ),
    ]
)


@given(st.lists(_PIECES, max_size=6).map(" ".join))
def test_a_text_with_nothing_to_cut_is_the_same_statement(text: str) -> None:
    try:
        # A line between them: what ends in a comment of a line would hide the semicolon.
        cut = cut_statements(f"{text}\n;", "")
    except ToolFailure:
        # Where something stays open, no semicolon can stand behind it: the server judges it alone.
        event("refused")
        return
    assert cut_statements(text, "") == cut
