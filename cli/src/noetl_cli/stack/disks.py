"""How much room there is where the stack and its servers keep what they have."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from noetl_cli.stack.checks import Check, Verdict

FREE_BYTES_WARN = 5 * 1024**3
FREE_BYTES_FAIL = 512 * 1024**2
NO_ROOM = "No space left on device"
FREE_IT = (
    "Free some space; nothing is lost and what waits goes on by itself "
    "(docs/operations/disk-full.md)."
)


def examine(root: Path, postgres_folder: str | None) -> list[Check]:
    """Look at every file system that the stack writes to, each once."""
    folders = {
        "disk": root,
        "disk of postgres": Path(postgres_folder) if postgres_folder else None,
        "disk of nats": root / "nats",
        "disk of s3": root / "seaweedfs",
        "disk of payloads": root / "payloads",
    }
    seen: set[int] = set()
    checks = []
    for name, folder in folders.items():
        place = None if folder is None else _first_there((folder, *folder.parents))
        if place is not None and place.stat().st_dev not in seen:
            seen.add(place.stat().st_dev)
            checks.append(_check(name, place))
    return checks


def _first_there(folders: Iterable[Path]) -> Path:
    return next(folder for folder in folders if folder.is_dir())


def _check(name: str, folder: Path) -> Check:
    free = shutil.disk_usage(folder).free
    verdict = Verdict.OK
    if free < FREE_BYTES_WARN:
        verdict = Verdict.FAIL if free < FREE_BYTES_FAIL else Verdict.WARN
    return Check(
        name=name,
        verdict=verdict,
        found=f"{free / 1024**3:.1f} GiB free at {folder}",
        way_out="" if verdict is Verdict.OK else FREE_IT,
    )
