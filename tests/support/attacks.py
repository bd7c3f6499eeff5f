"""The corpora of hostile templates, for every place where a template can be put."""

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "unit" / "playbook" / "attacks"
FRONT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: hostile, path: tests/hostile}
workload: {row: {x: 1}, rows: [{x: 1}, {x: 2}], day: "2026-01-02"}
workflow:
"""


def corpus(name: str) -> list[str]:
    """Every template of a file, whatever its group."""
    groups = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return [template for group in groups.values() for template in group]


def playbook(step: dict[str, Any]) -> str:
    """A playbook of one step."""
    return FRONT + yaml.safe_dump([{"step": "s", **step}], allow_unicode=True, width=10_000)


INJECTIONS, BOMBS = corpus("injections"), corpus("bombs")

# Whatever a template can give, wherever one can be put.
VALUES = [
    # Words and numbers that are none of those a place takes.
    *("'x'", "''", "none", "true", "0", "-1", "0.5", "10 ** 30", "2 ** 300", "'5%'", "'30s'"),
    *("'inf' | float", "-('inf' | float)", "'nan' | float", "['inf' | float]"),
    # What filters, tests and functions answer with all kinds of errors.
    *("'abcdef' | truncate(2)", "[1] | slice(0) | list", "1e17 | iso8601", "1 is divisibleby(0)"),
    *("[1, 'a'] | sort", "1e400 | list", "timedelta(days=10 ** 10)", "'(' | regex_search('(')"),
    *("'a' | regex_replace('a', '\\\\9')", "'{' | fromjson", "('[' * 9000) | fromjson"),
    *("now().strftime(1)", "range(10 ** 7)", "[1] | groupby('x') | list", "1 / 0", "nope"),
    # Values that no JSON has.
    *("{1: 2}", "{none: 1}", "{true: [1]}", "[{(1, 2): 3}]", "dict([[1, 2]])", "{now(): 1}"),
    *("'\\ud800'", "['\\ud83d']", "{'\\udfff': 1}", "'%c' | format(55296)", "'{:c}'.format(56000)"),
    *("'\\x00'", "now()", "today()", "timedelta(days=1)", "range(3)", "namespace()", "dict"),
    "('[' * 250 ~ ']' * 250) | fromjson",
    # Places that are not there, and texts that are long.
    *("workload['x' * 9000]", "['y' * 900000]", "'z' * 900000", "workload", "ctx", "steps", "vars"),
]
TEMPLATES = ["{{ " + value + " }}" for value in VALUES] + [
    *("{% for x in 5 %}{{ x }}{% endfor %}", "a{{ '\\ud800' }}b", "{{ 1 }}{{ nope.x }}", "{{ }}x"),
    *INJECTIONS,
]
