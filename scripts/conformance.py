# ruff: noqa: E501 - the text of pages has the width of pages
"""The page that says which test shows which statement of the language."""

from pathlib import Path

import yaml
from msgspec import Struct, convert

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "tests/conformance/language.yaml"
_HEAD = """# Conformance

What the language promises, by the sections of its specification, and the tests that show it. A number names a
statement for ever. `python -m scripts.pages` makes this page from `language.yaml`; a test checks that every
test named here exists.

"""


class Statement(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One promise; without tests it says why it is not shown."""

    n: str
    says: str
    tests: tuple[str, ...] = ()
    lacks: str = ""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The promises of one section of the specification."""

    section: str
    title: str
    statements: tuple[Statement, ...]


def sections() -> list[Section]:
    """Read the map."""
    return convert(yaml.safe_load(SOURCE.read_text("utf-8")), list[Section])


def page() -> str:
    """Write the page."""
    page_sections = sections()
    statements = [statement for section in page_sections for statement in section.statements]
    proven_statements = [item for item in statements if item.tests]
    count = f"{len(statements)} statements, {len(proven_statements)} shown, {len(statements) - len(proven_statements)} not shown.\n"
    return "".join((_HEAD, count, *(_section(section) for section in page_sections)))


def _section(section: Section) -> str:
    rows = "".join(_row(statement) for statement in section.statements)
    return f"\n## {section.section} {section.title}\n\n| | statement | shown by |\n|---|---|---|\n{rows}"


def _row(statement: Statement) -> str:
    test_links = "<br>".join(_link(test) for test in statement.tests)
    lacks = f"*not shown*: {statement.lacks}" if not statement.tests else statement.lacks
    cell = "<br>".join(part for part in (test_links, lacks) if part)
    return f"| {statement.n} | {statement.says} | {cell} |\n"


def _link(test: str) -> str:
    file, _, name = test.partition("::")
    short = Path(file).name
    return f"[{short}](../../{file})::{name}" if name else f"[{short}](../../{file})"
