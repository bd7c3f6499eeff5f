"""YAML rules: core scalars, string keys, and refusals of what could hurt."""

from typing import Any

import pytest

from noetl_playbook.source.yaml_document import (
    NODES_MAX,
    UnreadableError,
    read_document,
    read_documents,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("yes", "yes"),
        ("off", "off"),
        ("true", True),
        ("False", False),
        ("007", "007"),
        ("12:30", "12:30"),
        ("2026-01-02", "2026-01-02"),
        ("0", 0),
        ("-12", -12),
        ("0x1F", 31),
        ("0o17", 15),
        ("1.50", 1.5),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1_000", "1_000"),
        ("~", None),
        ("null", None),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("1.2.3", "1.2.3"),
    ],
)
def test_plain_scalars_follow_the_core_schema(text: str, expected: Any) -> None:
    found = read_document(f"a: {text}").value["a"]
    assert found == expected
    assert type(found) is type(expected)


def test_keys_are_always_text() -> None:
    assert read_document("on: 1\n1: 2\ntrue: 3\nnull: 4\n").value == {
        "on": 1,
        "1": 2,
        "true": 3,
        "null": 4,
    }


def test_merge_keys_and_aliases_are_expanded() -> None:
    text = "base: &b {x: 1, y: 2}\nc: {<<: *b, y: 3}\nd: *b\n"
    assert read_document(text).value == {"base": {"x": 1, "y": 2}, "c": {"x": 1, "y": 3},
                                "d": {"x": 1, "y": 2}}  # fmt: skip


def test_everything_has_its_place() -> None:
    document = read_document("a:\n  - b: {c: 1}\n    d: |\n      text\n")
    assert document.find_place(("a", 0, "b", "c")).line == 2
    assert document.find_place(("a", 0, "b", "c")).column == 12
    assert document.find_place(("a", 0, "b", "c"), of_key=True).column == 9
    assert document.find_place(("a", 0, "d")).is_block
    assert document.find_place(("a", 0, "b", "nothing")).column == 8


def test_ambiguous_words_are_remarked() -> None:
    assert [remark.code for remark in read_document("a: yes\nb: 'no'\n").text_problems] == ["W906"]


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2", "written twice"),
        ("a: [", "did not find expected"),
        ("a: &x [*x]", "no finished anchor"),
        ("a: *gone", "gone"),
        ("", "empty"),
        ("a: !!python/object:os.system x", "not accepted"),
        ("a: !custom {}", "not accepted"),
        ("? [a]\n: 1", "key must be plain"),
        ("a: " + "[" * 70 + "]" * 70, "nested deeper"),
        ("a: " + "{b: " * 5000 + "1" + "}" * 5000, "nested deeper"),
        (BOMB, f"more than {NODES_MAX}"),
        ("a: '" + "x" * 3_000_000 + "'", "larger than"),
        ("a: 1\n---\nb: 2", "2 documents"),
        ("a: " + "9" * 5000, "too long"),
        ("a: {<<: 1}", "only mappings"),
        ("a: \x01", "control characters"),
    ],
)
def test_what_could_hurt_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnreadableError, match=message):
        read_document(text)


def test_several_documents_are_read_one_by_one() -> None:
    assert [document.value for document in read_documents("a: 1\n---\nb: 2\n")] == [
        {"a": 1},
        {"b": 2},
    ]
