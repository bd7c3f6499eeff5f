"""The pages that are made from code and tables are current and whole."""

import ast
from functools import cache
from pathlib import Path

import pytest
import yaml
from scripts import conformance, pages, reference

from noetl_playbook import tools

ROOT = Path(__file__).parents[2]
SECTIONS = {str(number) for number in range(1, 20)}


@pytest.mark.parametrize("path", sorted(pages.pages()), ids=str)
def test_a_page_is_current(path: Path) -> None:
    written = (ROOT / path).read_text("utf-8")
    assert written == pages.pages()[path], "python -m scripts.pages"


def test_every_key_of_the_document_has_a_meaning() -> None:
    meanings = yaml.safe_load(reference.MEANINGS.read_text("utf-8"))
    assert set(meanings) == reference.keys()


@pytest.mark.parametrize("kind", [kind for kind in tools.KINDS.values() if kind.is_available])
def test_the_page_of_a_kind_names_each_of_its_fields(kind: tools.Kind) -> None:
    page = (ROOT / f"docs/tools/{kind.name}.md").read_text("utf-8")
    # Fields that only older documents use are told on the page of older forms.
    assert [name for name in sorted(kind.fields) if name not in page] == []


def test_every_test_of_the_conformance_map_exists() -> None:
    named = [
        test
        for section in conformance.sections()
        for each in section.statements
        for test in each.tests
    ]
    assert [test for test in named if not _exists(test)] == []


def test_the_conformance_map_covers_every_section() -> None:
    found = conformance.sections()
    assert {each.section.partition(".")[0] for each in found} == SECTIONS
    numbers = [each.n for section in found for each in section.statements]
    assert len(numbers) == len(set(numbers))


def test_a_statement_without_a_test_says_why() -> None:
    silent = [
        each.n
        for section in conformance.sections()
        for each in section.statements
        if not each.tests and not each.lacks
    ]
    assert silent == []


def _exists(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and (not name or name in _functions(file))


@cache
def _functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
