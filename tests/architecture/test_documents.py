"""The pages that are made from code and tables are current and whole."""

import ast
from functools import cache
from pathlib import Path

import pytest
import yaml
from scripts import conformance, pages, reference

from noetl_playbook.model import tools

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
def test_the_page_of_a_kind_names_each_of_its_fields(kind: tools.ToolKind) -> None:
    page = (ROOT / f"docs/reference/tools/{kind.name}.md").read_text("utf-8")
    # Fields that only older documents use are told on the page of older forms.
    assert [name for name in sorted(kind.fields) if name not in page] == []


def test_every_test_of_the_conformance_map_exists() -> None:
    named = [
        test
        for section in conformance.sections()
        for statement in section.statements
        for test in statement.tests
    ]
    assert [test for test in named if not _exists(test)] == []


def test_a_test_that_is_not_there_is_noticed() -> None:
    assert not _exists("tests/e2e/test_gallery.py::test_nothing")
    assert not _exists("tests/e2e/test_nothing.py::test_nothing")
    assert not _exists("tests/e2e/test_gallery.py::test_an_example_does_what_is_expected[nothing]")


def test_every_promise_that_was_written_down_is_on_the_map() -> None:
    named = {
        test.partition("[")[2].rstrip("]")
        for section in conformance.sections()
        for statement in section.statements
        for test in statement.tests
        if Path(test.partition("::")[0]).stem == "test_statements"
    }
    assert named == _cases("tests/e2e/test_statements.py")


def test_the_conformance_map_covers_every_section() -> None:
    found = conformance.sections()
    assert {item.section.partition(".")[0] for item in found} == SECTIONS
    numbers = [statement.n for section in found for statement in section.statements]
    assert len(numbers) == len(set(numbers))


def test_a_statement_without_a_test_says_why() -> None:
    silent = [
        statement.n
        for section in conformance.sections()
        for statement in section.statements
        if not statement.tests and not statement.lacks
    ]
    assert silent == []


def _exists(test: str) -> bool:
    """Find a test, and the case that it names in brackets."""
    file, _, named = test.partition("::")
    name, _, case = named.rstrip("]").partition("[")
    if not (ROOT / file).is_file() or name not in _functions(file):
        return False
    return not case or any(item == case or item.startswith(f"{case}-") for item in _cases(file))


@cache
def _cases(file: str) -> frozenset[str]:
    """List the cases that stand in files beside a test."""
    match Path(file).stem:
        case "test_gallery":
            return frozenset(item.stem for item in ROOT.glob("examples/*.yaml"))
        case "test_statements":
            told = yaml.safe_load((ROOT / "tests/e2e/statements.yaml").read_text("utf-8"))
            return frozenset(item["name"] for item in told)
        case "test_wrong_playbooks":
            return frozenset(item.stem for item in ROOT.glob("tests/unit/playbook/wrong/*.yaml"))
        case _:
            return frozenset()


@cache
def _functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return frozenset(
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
