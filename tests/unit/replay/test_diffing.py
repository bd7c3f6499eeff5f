"""Differences of plain values, as changes and as a tree."""

from noetl_replay import diffing
from noetl_replay.diffing import Change, Kind

BEFORE = {
    "frame": {"7": {"rows": 3, "cursor": {"slot": 0}}},
    "loop": {"1": {"done": 1}},
    "x": [1, 2],
}
AFTER = {"frame": {"7": {"rows": 5, "cursor": {"slot": 0}}, "8": {"rows": 1}}, "loop": {}, "x": [1]}


def test_equal_values_do_not_differ() -> None:
    assert diffing.compare(BEFORE, BEFORE) == []
    assert diffing.compare({"a": 1, "b": 2}, {"b": 2, "a": 1}) == []
    assert diffing.tree([]) == []


def test_each_difference_is_named_by_its_path() -> None:
    assert diffing.compare(BEFORE, AFTER) == [
        Change(path=("frame", "7", "rows"), kind=Kind.CHANGED, before=3, after=5),
        Change(path=("frame", "8"), kind=Kind.ADDED, after={"rows": 1}),
        Change(path=("loop", "1"), kind=Kind.REMOVED, before={"done": 1}),
        Change(path=("x", "[1]"), kind=Kind.REMOVED, before=2),
    ]


def test_numbers_that_json_writes_differently_differ() -> None:
    assert diffing.compare({"a": 1}, {"a": 1.0}) != []
    assert diffing.compare({"a": True}, {"a": 1}) != []
    assert diffing.compare({"a": None}, {}) == [Change(path=("a",), kind=Kind.REMOVED)]


def test_the_tree_can_be_read() -> None:
    assert diffing.tree(diffing.compare(BEFORE, AFTER)) == [
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
    (change,) = diffing.compare({"a": ""}, {"a": "x" * 500})
    assert len(change.after) == 500
    assert len(diffing.tree([change])[0]) < 2 * diffing.SHOWN_CHARACTERS


def test_values_nested_beyond_measure_are_compared_as_a_whole() -> None:
    def deep(leaf: int) -> object:
        value: object = leaf
        for _ in range(300):
            value = [value]
        return value

    (change,) = diffing.compare(deep(1), deep(2))
    assert len(change.path) == diffing.DEPTH_MAX
