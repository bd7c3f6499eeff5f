"""The page of the documentation that lists every problem code, made from the table.

`python -m noetl_playbook.problem_page > docs/reference/language/problems.md` writes it.
"""

import sys

from noetl_playbook.code_table import CODES
from noetl_playbook.codes import Code, Weight

_HEAD = """# Problems

```console
$ noetl lint orders.yaml --strict
$ noetl lint --explain E303
```

What `noetl lint`, registration and `noetl run` may say about a playbook. `python -m
noetl_playbook.problem_page` makes this page from the table of codes.

Registration and execution use the level `tolerant`. The level `strict` comes from `noetl lint
--strict` or `register?level=strict`. An error refuses the document, a warning does not.
"""
_LEVELS = {
    Weight.ERROR: "error",
    Weight.STRICT_ERROR: "warning, strict: error",
    Weight.WARNING: "warning",
    Weight.STRICT_WARNING: "strict: warning",
}


def page() -> str:
    """Write the page."""
    return _HEAD + "".join(_entry(code) for code in CODES.values())


def _entry(code: Code) -> str:
    return (
        f"\n## {code.code}\n\n{code.title} ({_LEVELS[code.weight]}). {code.advice}\n\n"
        f"```yaml\n# wrong\n{code.wrong}\n# right\n{code.right}\n```\n"
    )


if __name__ == "__main__":
    sys.stdout.write(page())
