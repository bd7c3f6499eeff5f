"""The reviewer's list names, for each of its twenty attacks, tests that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = dict(
    re.findall(
        r"^\| (\d+) \|(.*)\|$", (ROOT / "tests/security/README.md").read_text(), re.MULTILINE
    )
)
NAMED = re.compile(r"`([^`:\s]*)::(test_\w+)`")


@cache
def list_tests(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


def test_each_attack_has_its_row() -> None:
    assert list(ROWS) == [str(number) for number in range(1, 21)]


@pytest.mark.parametrize("number", ROWS)
def test_the_tests_of_an_attack_exist(number: str) -> None:
    named = NAMED.findall(ROWS[number])
    assert len(named) == ROWS[number].count("test_") - ROWS[number].count("/test_")
    path = ""
    for file, name in named:
        # Where no file is named it is that of the test before.
        path = file or path
        assert path, ROWS[number]
        assert name in list_tests(ROOT / path), f"{path}::{name}"
