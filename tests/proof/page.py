"""What the proofs found, kept as JSON and shown as a page."""

from pathlib import Path
from typing import Any

import msgspec
from tests.proof import registry

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
JSON_FILE = BENCHMARKS / "proofs.json"
PAGE_FILE = BENCHMARKS / "proofs.md"
_HEAD = """# Proofs

Each section is one command, `make proof/<name>`, and what it found: it runs the case at full size on its own servers,
fails unless everything that it says below holds, and writes its section anew. The suite holds the same cases at a
smaller size. Times of a shared machine say little; counts, CPU seconds and memory say more.
"""


def read(file: Path) -> dict[str, Any]:
    """Read what was found so far, by name."""
    found: dict[str, Any] = msgspec.json.decode(file.read_bytes()) if file.exists() else {}
    return found


def write(file: Path, found: dict[str, Any]) -> None:
    """Keep what was found."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")


def page(found: dict[str, Any]) -> str:
    """Write the page: a section for each proof that has been run."""
    sections = [
        f"## {name}\n\n{proof.section(found[name])}"
        for name, proof in registry.PROOFS.items()
        if name in found
    ]
    return "\n".join([_HEAD, *sections])
