"""The documentation of the codes is the table of codes."""

import re
from pathlib import Path

from noetl_playbook.lint.problem_page import render_page
from noetl_playbook.source.code_table import CODES

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "libs/playbook/src").glob("**/*.py"))
USED = re.compile(r'"([EW]\d{3})"')


def test_the_page_is_current() -> None:
    written = (ROOT / "docs/reference/language/problems.md").read_text("utf-8")
    assert written == render_page(), (
        "python -m noetl_playbook.lint.problem_page > docs/reference/language/problems.md"
    )


def test_every_code_is_used_and_every_used_code_is_in_the_table() -> None:
    used = {
        code
        for file in SOURCES
        if file.name != "code_table.py"
        for code in USED.findall(file.read_text("utf-8"))
    }
    assert used == set(CODES)
