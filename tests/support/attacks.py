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
