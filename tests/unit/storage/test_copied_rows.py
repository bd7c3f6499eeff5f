from datetime import UTC, datetime
from typing import Any

from noetl_storage.memory.projections import copy_row


def row() -> dict[str, Any]:
    """A row with everything that rows consist of, and what they do not."""
    begun = datetime(2026, 1, 2, tzinfo=UTC)
    deep = {"list": [{"n": 1.5}, [b"x", None, True]], "empty": {}}
    return {"id": "7", "n": 3, "begun_at": begun, "deep": deep, "other": (["x"], {"y"})}


def test_a_copy_is_equal_and_nothing_that_can_change_is_shared() -> None:
    first = row()
    second = copy_row(first)
    assert second == first
    second["deep"]["list"][0]["n"] = 2
    second["deep"]["list"][1].append("more")
    second["deep"]["empty"]["k"] = 1
    second["other"][0].append("z")
    second["other"][1].clear()
    assert first == row()


def test_a_list_of_rows_is_copied_with_its_rows() -> None:
    rows = [row(), row()]
    again = copy_row(rows)
    again[0]["id"] = "8"
    again.pop()
    assert rows == [row(), row()]
