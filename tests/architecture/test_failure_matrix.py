"""The failure matrix: each fault of the design has its row, and each row a test that is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/explanation/failures.md").read_text()
FAULTS = 30
# What a row may name: a test file, or a folder of tests.
NAMED = re.compile(r"`([a-z0-9_]+(?:/[A-Za-z0-9_.]+)*)`")
ROW = re.compile(r"^\| *(\d+) *\| *([^|]+)\| *(.+?) *\|$", re.MULTILINE)
ROWS = {int(number): (fault.strip(), shown) for number, fault, shown in ROW.findall(PAGE)}


def has_tests(path: Path) -> bool:
    """Tell whether a file, or any file of a folder, holds a test."""
    files = sorted(path.rglob("test_*.py")) if path.is_dir() else [path]
    return any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
    )


def test_every_fault_of_the_design_has_one_row() -> None:
    assert sorted(ROWS) == list(range(1, FAULTS + 1))


@pytest.mark.parametrize("number", sorted(ROWS))
def test_every_row_names_a_test_that_is_there(number: int) -> None:
    fault, shown = ROWS[number]
    names = [name for name in NAMED.findall(shown) if (ROOT / "tests" / name).exists()]
    missing = [name for name in NAMED.findall(shown) if "/test_" in name and name not in names]
    assert missing == [], fault
    assert all(has_tests(ROOT / "tests" / name) for name in names), fault
    assert names, f"{fault}: no test"


def test_every_test_that_the_tables_name_by_words_is_in_a_file_that_is_there() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and "`" in line]
    files = {name for line in lines for name in NAMED.findall(line) if name.endswith(".py")}
    assert files, "the tables name tests"
    assert [name for name in sorted(files) if not (ROOT / "tests" / name).is_file()] == []
