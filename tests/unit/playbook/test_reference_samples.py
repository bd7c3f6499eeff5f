"""Every YAML sample of these pages is a part of a playbook that `noetl lint --strict` accepts."""

from pathlib import Path

import pytest
import yaml
from tests.support.page_samples import Sample, complete_playbook, list_samples

from noetl_playbook.parse import mixed_text
from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.source.problems import Level

ROOT = Path(__file__).parents[3]
REFERENCE = sorted((ROOT / "docs/reference").rglob("*.md"))
SHOWS_WRONG = "problems.md"
OLDER = "older-forms.md"
PAGES = [
    *REFERENCE,
    *sorted((ROOT / "docs/explanation").glob("*.md")),
    *sorted((ROOT / "docs/operations").glob("*.md")),
    *sorted((ROOT / "docs/how-to").glob("*.md")),
]
SAMPLES = [
    sample
    for page in PAGES
    if page.name not in (SHOWS_WRONG, OLDER)
    for sample in list_samples(page)
    # Files of how-to guides are run by tests/e2e/test_pages_for_users.py.
    if not (sample.title and page.parent.name == "how-to")
]
# A part names what the rest of its playbook would define.
OF_PARTS = {"E205", "E303", "E304", "E202"}
SUBSCRIPTION = "kind: Subscription"
OLDER_CODES = {"W901", "W902", "W903", "W904"}


def problems_of(text: str, level: Level = Level.STRICT) -> dict[str, str]:
    if SUBSCRIPTION in text:
        problems = mixed_text.read_mixed_bytes(text.encode(), level=level).all_problems
    else:
        problems = list(parse_playbook(complete_playbook(text), level=level).problems)
    return {problem.code: problem.message for problem in problems}


def name_sample(sample: Sample) -> str:
    return f"{sample.page.stem}-{sample.line}"


@pytest.mark.parametrize("sample", SAMPLES, ids=name_sample)
def test_a_sample_is_accepted(sample: Sample) -> None:
    found = problems_of(sample.text)
    tolerated = set() if sample.is_whole else OF_PARTS
    assert {code: said for code, said in found.items() if code not in tolerated} == {}


@pytest.mark.parametrize(
    "sample", list_samples(ROOT / "docs/reference/language" / OLDER), ids=name_sample
)
def test_an_older_form_loads_with_warnings(sample: Sample) -> None:
    found = set(problems_of(sample.text, Level.TOLERANT))
    assert found & OLDER_CODES
    assert found <= OLDER_CODES | OF_PARTS


def test_a_wrong_sample_is_noticed() -> None:
    assert "E103" in problems_of("tool: {kind: http, url: u, methd: POST}")
    assert "E104" in problems_of(f"{SUBSCRIPTION}\nspec: 1")
    assert "E203" in problems_of("workflow: [{step: a, tool: {kind: noop}, next: b}]")
    with pytest.raises(ValueError, match="no list of steps"):
        complete_playbook(yaml.safe_dump([1, 2]))


def test_every_page_has_a_sample() -> None:
    assert [page.name for page in REFERENCE if "```" not in page.read_text("utf-8")] == []
