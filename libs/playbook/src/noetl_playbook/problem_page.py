"""The page of the documentation that lists every problem code, made from the table.

`python -m noetl_playbook.problem_page > docs/reference/language/problems.md` writes it.
"""

import sys

from noetl_playbook.code_table import CODES
from noetl_playbook.codes import Code, Weight

_HEAD = """# Problems

What `noetl lint`, registration and `noetl run` may say about a playbook. This page is made from the
table of codes by `python -m noetl_playbook.problem_page`.

A document is judged at one of two levels. `tolerant` is the level of registration and execution;
`strict` is asked for with `noetl lint --strict` or `register?level=strict`. An error refuses the
document, a warning does not. `noetl lint --explain CODE` prints one entry.

| code | meaning | tolerant | strict |
|---|---|---|---|
"""
_LEVELS = {
    Weight.ERROR: ("error", "error"),
    Weight.STRICT_ERROR: ("warning", "error"),
    Weight.WARNING: ("warning", "warning"),
    Weight.STRICT_WARNING: ("-", "warning"),
}


def page() -> str:
    """Write the page."""
    codes = CODES.values()
    return "".join((_HEAD, *(_row(code) for code in codes), *(_entry(code) for code in codes)))


def _row(code: Code) -> str:
    tolerant, strict = _LEVELS[code.weight]
    return f"| [{code.code}](#{code.code.lower()}) | {code.title} | {tolerant} | {strict} |\n"


def _entry(code: Code) -> str:
    return (
        f"\n## {code.code}\n\n{code.title}. {code.advice}\n\n"
        f"```yaml\n# wrong\n{code.wrong}\n# right\n{code.right}\n```\n"
    )


if __name__ == "__main__":
    sys.stdout.write(page())
