"""What the documents point to is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
CODE_PATH = re.compile(
    r"`((?:libs|services|cli|deploy|tests|workloads|docs|benchmarks)/[A-Za-z0-9_./-]+)`"
)
CODE_NAME = re.compile(r"`((?:libs|services|cli|workloads)/[A-Za-z0-9_./-]+\.py)::(\w+)`")
TEST_PATH = re.compile(
    r"`((?:unit|property|integration|conformance|chaos|e2e|simulation|acceptance|replay)/[A-Za-z0-9_./-]+)`"
)
# Written by `make bench`.
GENERATED = {"benchmarks/benchmarks.md"}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_paths_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    parents = [document.parent / target for target in LINK.findall(text)]
    parents += [ROOT / path for path in CODE_PATH.findall(text) if path not in GENERATED]
    parents += [ROOT / "tests" / path for path in TEST_PATH.findall(text)]
    missing = [str(path) for path in parents if not path.exists()]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_in_code_are_defined_where_a_document_says(document: Path) -> None:
    missing = [
        f"{path}::{name}"
        for path, name in CODE_NAME.findall(document.read_text())
        if not re.search(rf"(?m)^\s*(?:async def|def|class) {name}\b", (ROOT / path).read_text())
    ]
    assert not missing


def test_every_decision_is_listed() -> None:
    listed = (ROOT / "docs/decisions/README.md").read_text()
    pages = [path.name for path in (ROOT / "docs/decisions").glob("0*.md")]
    assert [page for page in pages if page not in listed] == []


def test_the_make_targets_of_the_documents_exist() -> None:
    rules = re.findall(r"(?m)^(?:\.PHONY: )?([a-z0-9/ ]+)(?::|$)", (ROOT / "Makefile").read_text())
    targets = {target for rule in rules for target in rule.split()}
    wanted = {
        target
        for name in ("README.md", "CONTRIBUTING.md", "STYLE.md")
        for line in re.findall(r"`([^`]*)`|^    (.*)$", (ROOT / name).read_text(), re.MULTILINE)
        for target in re.findall(r"\bmake ([a-z]+(?:/[a-z]+)?)\b", "".join(line))
    }
    assert wanted <= targets, f"no such target: {wanted - targets}"
