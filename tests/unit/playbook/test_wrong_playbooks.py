"""Every file of `wrong/` says in its first lines what is wrong with it; nothing else may be."""

import re
from collections import Counter
from pathlib import Path

import pytest

from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.source.code_table import CODES
from noetl_playbook.source.problems import Level

FOLDER = Path(__file__).parent / "wrong"
FILES = sorted(FOLDER.glob("*.yaml"))
RIGHT = sorted((FOLDER.parent / "right").glob("*.yaml"))
EXPECTED = re.compile(
    r"# expect (\d+):(\d+) (\w+) (.+) tolerant=(error|warning|none) strict=(error|warning)"
)
# Too large for a file: test_hostile_documents.py makes them.
MADE_ELSEWHERE = {"E602", "W910"}

Found = tuple[int, int, str, str, str]


def expected(text: str, level: Level) -> list[Found]:
    found: list[Found] = []
    for line, column, code, path, tolerant, strict in EXPECTED.findall(text):
        severity = tolerant if level is Level.TOLERANT else strict
        if severity != "none":
            found.append((int(line), int(column), code, path, severity))
    return sorted(found)


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_wrong_playbook_gets_exactly_its_problems(file: Path, level: Level) -> None:
    text = file.read_text(encoding="utf-8")
    parsed = parse_playbook(text, level=level)
    problems = [
        (problem.line, problem.column, problem.code, problem.path or "-", str(problem.severity))
        for problem in parsed.problems
    ]
    assert sorted(problems) == expected(text, level), parsed.problems
    assert problems == sorted(problems, key=lambda each: each[:2])
    assert (parsed.playbook is None) == any(problem.is_error for problem in parsed.problems)


@pytest.mark.parametrize("file", RIGHT, ids=lambda file: file.stem)
def test_a_right_playbook_has_no_problems(file: Path) -> None:
    assert parse_playbook(file.read_text(encoding="utf-8"), level=Level.STRICT).problems == ()


def test_every_file_expects_something() -> None:
    assert len(FILES) >= 150
    silent = [file.name for file in FILES if not EXPECTED.search(file.read_text("utf-8"))]
    assert not silent


def test_every_code_has_at_least_two_files() -> None:
    counts: Counter[str] = Counter()
    for file in FILES:
        counts.update({found[2] for found in EXPECTED.findall(file.read_text("utf-8"))})
    few = {code for code in CODES if counts[code] < 2} - MADE_ELSEWHERE
    assert not few, f"write another wrong playbook for {sorted(few)}"
