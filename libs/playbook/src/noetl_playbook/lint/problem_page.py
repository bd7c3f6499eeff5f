"""The page of the documentation that lists every problem code, made from the table.

`python -m noetl_playbook.lint.problem_page > docs/reference/language/problems.md` writes it.
"""

import sys

from noetl_playbook.source.code_table import CODES, CodeWeight, ProblemCode

_HEAD = """# Problems

```console
$ noetl lint orders.yaml --strict
$ noetl lint --explain E303
```

What `noetl lint`, registration and `noetl run` may say about a playbook. `python -m
noetl_playbook.lint.problem_page` makes this page from the table of codes.

Registration and execution use the level `tolerant`. The level `strict` comes from `noetl lint
--strict` or `register?level=strict`. An error refuses the document, a warning does not.
"""
_LEVELS = {
    CodeWeight.ERROR: "error",
    CodeWeight.STRICT_ERROR: "warning, strict: error",
    CodeWeight.WARNING: "warning",
    CodeWeight.STRICT_WARNING: "strict: warning",
}


def render_page() -> str:
    """Write the page."""
    return _HEAD + "".join(_render_entry(code) for code in CODES.values())


def _render_entry(code: ProblemCode) -> str:
    return (
        f"\n## {code.code}\n\n{code.title} ({_LEVELS[code.weight]}). {code.advice}\n\n"
        f"```yaml\n# wrong\n{code.wrong}\n# right\n{code.right}\n```\n"
    )


if __name__ == "__main__":
    sys.stdout.write(render_page())
