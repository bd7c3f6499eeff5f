"""Show what takes too long for the suite: `python -m tests.proof NAME...`; writes benchmarks/proofs.{json,md}."""

import argparse
import platform
import tempfile
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from tests.proof import registry
from tests.proof.page import JSON_FILE, PAGE_FILE, page, read, write

console = Console()


def main() -> None:
    """Run the proofs that are asked for; what the others found stays on the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="*", choices=[*registry.PROOFS, []], help="what to show")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    parser.add_argument("--spec", type=Path, help="lineage: a folder with OpenLineage's files")
    arguments = parser.parse_args()
    if not arguments.name and not arguments.page:
        parser.error(f"name at least one of {', '.join(registry.PROOFS)}")
    if registry.NEEDS_SPEC in arguments.name and (
        arguments.spec is None or not arguments.spec.is_dir()
    ):
        parser.error(
            "lineage needs --spec FOLDER; docs/reference/lineage.md says which files belong there"
        )
    for name in arguments.name:
        more = {"spec": arguments.spec} if name == registry.NEEDS_SPEC else {}
        with tempfile.TemporaryDirectory(prefix=f"noetl-proof-{name}-") as folder:
            found = registry.PROOFS[name].prove(Path(folder), **more)
        console.print(name, found)
        write(JSON_FILE, {**read(JSON_FILE), name: {"machine": _machine(), **found}})
    PAGE_FILE.write_text(page(read(JSON_FILE)))


def _machine() -> dict[str, Any]:
    return {
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
