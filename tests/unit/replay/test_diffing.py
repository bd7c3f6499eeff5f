"""Differences of plain values, as changes and as a tree."""

from noetl_replay import comparison
from noetl_replay.comparison import ChangeKind, ValueChange

BEFORE = {
    "frame": {"7": {"rows": 3, "cursor": {"slot": 0}}},
    "loop": {"1": {"done": 1}},
    "x": [1, 2],
}
AFTER = {"frame": {"7": {"rows": 5, "cursor": {"slot": 0}}, "8": {"rows": 1}}, "loop": {}, "x": [1]}


def test_equal_values_do_not_differ() -> None:
    assert comparison.compare_values(BEFORE, BEFORE) == []
    assert comparison.compare_values({"a": 1, "b": 2}, {"b": 2, "a": 1}) == []
    assert comparison.render_change_tree([]) == []


def test_each_difference_is_named_by_its_path() -> None:
    assert comparison.compare_values(BEFORE, AFTER) == [
        ValueChange(path=("frame", "7", "rows"), kind=ChangeKind.CHANGED, before=3, after=5),
        ValueChange(path=("frame", "8"), kind=ChangeKind.ADDED, after={"rows": 1}),
        ValueChange(path=("loop", "1"), kind=ChangeKind.REMOVED, before={"done": 1}),
        ValueChange(path=("x", "[1]"), kind=ChangeKind.REMOVED, before=2),
    ]


def test_numbers_that_json_writes_differently_differ() -> None:
    assert comparison.compare_values({"a": 1}, {"a": 1.0}) != []
    assert comparison.compare_values({"a": True}, {"a": 1}) != []
    assert comparison.compare_values({"a": None}, {}) == [
        ValueChange(path=("a",), kind=ChangeKind.REMOVED)
    ]


def test_the_tree_can_be_read() -> None:
    assert comparison.render_change_tree(comparison.compare_values(BEFORE, AFTER)) == [
        "frame",
        "  7",
        "    ~ rows: 3 -> 5",
        '  + 8: {"rows":1}',
        "loop",
        '  - 1: {"done":1}',
        "x",
        "  - [1]: 2",
    ]


def test_long_values_are_cut_in_the_tree_alone() -> None:
    (change,) = comparison.compare_values({"a": ""}, {"a": "x" * 500})
    assert len(change.after) == 500
    assert len(comparison.render_change_tree([change])[0]) < 2 * comparison.SHOWN_CHARACTERS


def test_values_nested_beyond_measure_are_compared_as_a_whole() -> None:
    def deep(leaf: int) -> object:
        value: object = leaf
        for _ in range(300):
            value = [value]
        return value

    (change,) = comparison.compare_values(deep(1), deep(2))
    assert len(change.path) == comparison.DEPTH_MAX
