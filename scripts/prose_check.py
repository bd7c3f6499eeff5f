"""Words of docs, comments and docstrings, checked with Vale: `python -m scripts.prose_check`.

The rules are in `.vale/styles/NoETL`. Vale is a program of its own: `make vale` builds it with Go
and a C compiler. Where it is missing the check is skipped, and one line says so.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT = Path("build/vale/vale")
MODULE = Path("scripts/vale/go.mod")
FOLDERS = ("docs", "libs", "services", "cli", "workloads")


def get_pinned_version(root: Path) -> str:
    """Read the version of Vale that `scripts/vale/go.mod` pins."""
    (version,) = re.findall(
        r"^\s*github\.com/\S+/vale/v3 v(\S+)", (root / MODULE).read_text(), re.MULTILINE
    )
    return str(version)


def find_vale(root: Path, search_path: str | None = None) -> tuple[str | None, str]:
    """Find Vale in the version that is pinned: its program, or None and the reason."""
    version = get_pinned_version(root)
    on_path = shutil.which("vale", path=search_path)
    built = root / BUILT
    for program in (str(built) if built.is_file() else None, on_path):
        if program is not None and read_version(program) == version:
            return program, ""
    missing = f"Vale {version} is neither built nor on the PATH"
    if shutil.which("go", path=search_path) is None:
        return None, f"{missing}, and there is no Go to build it with"
    return None, f"{missing}; `make vale` builds it"


def read_version(program: str) -> str | None:
    """Ask a program for its version; None when it does not tell one."""
    try:
        answer = subprocess.run(  # noqa: S603 - the program was found by its name
            [program, "--version"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"v?(\d+\.\d+\.\d+)", answer)
    return match[1] if match else None


def list_targets(root: Path) -> list[str]:
    """List the folders and root pages that are checked."""
    pages = sorted(path.name for path in root.glob("*.md"))
    return [*(folder for folder in FOLDERS if (root / folder).is_dir()), *pages]


def main(root: Path = ROOT, search_path: str | None = None) -> int:
    """Check the prose of a checkout; return 0 when it is skipped, and else the result of Vale."""
    program, reason = find_vale(root, search_path)
    if program is None:
        print(f"prose check skipped: {reason}.")
        return 0
    command: Sequence[str] = [program, "--no-global", "--output=line", *list_targets(root)]
    return subprocess.run(command, cwd=root, check=False).returncode  # noqa: S603 - as above


if __name__ == "__main__":
    sys.exit(main())
