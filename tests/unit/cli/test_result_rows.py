"""Which rows a result is shown as."""

from typing import Any

import pytest

from noetl_cli.planner.step_result import StepResult
from noetl_cli.terminal.result_text import drop_repeated_commands, find_rows, print_result


def loop(*items: Any) -> dict[str, Any]:
    """Return the result of a loop with these items."""
    return {"results": list(items), "stats": {"total": len(items)}, "data": list(items)}


def test_fields_of_mappings_are_columns_of_items() -> None:
    answer = {"id": 1, "user": {"name": "ada", "tags": ["a"]}}
    item = {"data": answer, "status_code": 200, "headers": {"server": "x"}, "body": answer}
    assert (
        find_rows(loop(item, item))
        == [
            {
                "data.id": 1,
                "data.user.name": "ada",
                "data.user.tags": ["a"],
                "status_code": 200,
                "headers": {"server": "x"},
            }
        ]
        * 2
    )


def test_an_item_that_failed_is_an_empty_row_with_its_number() -> None:
    assert find_rows(loop({"n": 1}, None)) == [{"item": 0, "n": 1}, {"item": 1}]


def test_items_that_are_tables_give_their_rows() -> None:
    first, second = {"rows": [{"n": 1}, {"n": 2}], "row_count": 2}, {"rows": [{"n": 3}]}
    assert find_rows(loop(first, second)) == [
        {"item": 0, "n": 1},
        {"item": 0, "n": 2},
        {"item": 1, "n": 3},
    ]


@pytest.mark.parametrize("items", [(1, 2), ({},), (None,), ([1], [2])])
def test_items_without_fields_are_no_rows(items: tuple[Any, ...]) -> None:
    assert find_rows(loop(*items)) is None


def test_columns_whose_names_have_dots_are_left_as_they_are() -> None:
    item = {"a": {"b": 1}, "a.b": 2}
    assert find_rows(loop(item)) == [item]


def test_rows_of_a_table_are_left_as_they_are() -> None:
    rows = [{"point": {"x": 1}}]
    assert find_rows({"rows": rows, "columns": ["point"]}) == rows


def test_what_is_left_out_of_the_rows_of_items_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    items = [{"rows": [{"n": number} for number in range(30)]}] * 2
    print_result(StepResult(step="a", data=loop(*items), error=None, total=5), whole="noetl X")
    shown = capsys.readouterr()
    assert "20 rows of the first 2 of 5 items are shown. All of it: noetl X" in shown.err
    assert len(shown.out.splitlines()) == 22


COPIED = {"rows": [], "row_count": 1, "columns": [], "status": "ok", "message": "COPY 1"}


def test_a_single_statement_is_shown_once() -> None:
    data = {"commands": [COPIED], "command_0": COPIED, **COPIED, "statement_count": 1}
    assert drop_repeated_commands(data) == {**COPIED, "statement_count": 1}


def test_several_statements_are_shown_as_a_list_once() -> None:
    made = {**COPIED, "message": "CREATE 0"}
    data = {"commands": [made, COPIED], "command_0": made, "command_1": COPIED, **COPIED}
    assert drop_repeated_commands(data) == {"commands": [made, COPIED], **COPIED}
    own = {"commands": [made], "command_0": "of the user's own", "total": 3}
    assert drop_repeated_commands(own) == own
