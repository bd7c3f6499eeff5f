# ruff: noqa: E501 - the text of pages has the width of pages
"""The pages of the documentation that are made from code and tables: `python -m scripts.pages`."""

import re
import sys
from pathlib import Path

from scripts import conformance, credential_page, reference, roles_page

ROOT = Path(__file__).resolve().parents[1]
_SHOWS = re.compile(r"# Shows: (.+)\n((?:#        .+\n)*)")
_EXAMPLES = """# Examples

Each playbook shows one thing; its first lines say what, how to run it, and how it ends. All of them run in
`tests/e2e/test_gallery.py`, which compares what they did with `expected/<name>.yaml`. This table is made by
`python -m scripts.pages`.

Examples that call HTTP use the little shop of the tests: `python -m tests.support.shop` opens it at port 8700; start the stack
with `noetl up --allow-http 127.0.0.1:8700`.
Those that need PostgreSQL or NATS name a credential: `main_db` or `bus`.

| example | shows |
|---|---|
"""


def pages() -> dict[Path, str]:
    """Make every page, by the file that it is kept in."""
    return {
        Path("examples/README.md"): examples(),
        Path("docs/reference/credentials.md"): credential_page.page(),
        Path("docs/reference/roles.md"): roles_page.page(),
        Path("docs/reference/language/sections.md"): reference.sections(),
        Path("docs/reference/language/tools.md"): reference.tool_kinds(),
        Path("docs/reference/language/vocabulary.md"): reference.vocabulary(),
        Path("tests/conformance/LANGUAGE.md"): conformance.page(),
    }


def examples() -> str:
    """List the examples with what they show."""
    files = sorted((ROOT / "examples").glob("*.yaml"))
    return _EXAMPLES + "".join(
        f"| [{file.stem}]({file.name}) | {_shown(file)} |\n" for file in files
    )


def _shown(file: Path) -> str:
    match = _SHOWS.match(file.read_text("utf-8"))
    if match is None:
        raise ValueError(f"{file} does not begin with '# Shows: …'")
    return " ".join((match[1] + " " + match[2].replace("#", "")).split()).replace("|", "\\|")


def main() -> None:
    """Write every page."""
    for path, text in pages().items():
        (ROOT / path).write_text(text, "utf-8")
        sys.stdout.write(f"{path}\n")


if __name__ == "__main__":
    main()
