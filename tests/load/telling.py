"""How figures are written, and on what machine they were found."""

import os
import platform
from collections.abc import Sequence
from typing import Any

import psutil


def machine(load_before: float) -> dict[str, Any]:
    """Say on what the run was, and how busy that was; `load_before` is what `load` said then."""
    return {
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
        "load": [load_before, load()],
    }


def load() -> float:
    """The machine's load average of the last minute for each of its processors."""
    return round(os.getloadavg()[0] / (psutil.cpu_count() or 1), 1)


def on(one: dict[str, Any]) -> str:
    """Tell on what it was found."""
    machine = one["machine"]
    began, ended = machine["load"]
    return (
        f"{machine['cores']} processors, {machine['memory_gib']} GiB, Python {machine['python']}; "
        f"load {began} to {ended}."
    )


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Write a table whose first column is words and the others figures."""
    lines = [head, ("---", *("---:" for _ in head[1:])), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def counts(found: dict[str, int]) -> str:
    """Write counts by name, or that there are none."""
    return ", ".join(f"{name} {count:,}" for name, count in found.items()) or "none"


def _cell(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
