"""Every example of the language and every playbook of the tree loads, and stays what it became."""

from pathlib import Path

import msgspec
import pytest
from tests.support.canonical_document import build_document

from noetl_playbook.compat import dialect
from noetl_playbook.parse.playbook import parse_playbook

ROOT = Path(__file__).parents[3]
PAGE = sorted((Path(__file__).parent / "page").glob("*.yaml"))
TREE = sorted(
    file
    for folder in ("cli", "docs", "examples", "services", "workloads")
    for file in (ROOT / folder).rglob("*.yaml")
    if "kind: Playbook" in file.read_text()
)
OLDER = {"W901", "W902", "W903", "W904"}
# An example is a part of a playbook: it names what the rest would define. One calls an item `job`.
OF_PARTS = {"E205", "E303", "E304", "W908"}


@pytest.mark.parametrize("file", [*PAGE, *TREE], ids=lambda file: file.stem)
def test_it_loads_and_normalising_it_again_changes_nothing(file: Path) -> None:
    parsed = parse_playbook(file.read_text())
    assert parsed.playbook is not None, parsed.problems
    codes = {problem.code for problem in parsed.problems}
    assert codes <= OF_PARTS | (OLDER if "older" in file.stem else set())
    written = msgspec.json.encode(build_document(parsed.playbook)).decode()
    again = parse_playbook(written)
    assert again.playbook == parsed.playbook
    assert {problem.code for problem in again.problems} <= OF_PARTS


def test_the_older_example_of_the_page_becomes_its_canonical_one() -> None:
    older, canonical = (
        parse_playbook(
            (Path(__file__).parent / "page" / f"repeat-{name}.yaml").read_text()
        ).playbook
        for name in ("older", "canonical")
    )
    assert older is not None
    assert dialect.write_undefined_mode(older, "strict") == canonical


def test_there_are_examples_to_load() -> None:
    assert len(PAGE) >= 25
    assert any(file.stem == "pft_a" for file in TREE)
