"""Checks of the stack's health, and the one of its disks."""

import shutil
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path

from msgspec import Struct


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class HealthCheck(Struct, frozen=True, kw_only=True):
    """One thing looked at."""

    name: str
    verdict: Verdict
    found: str
    way_out: str = ""


FREE_BYTES_WARN = 5 * 1024**3
FREE_BYTES_FAIL = 512 * 1024**2
NO_ROOM = "No space left on device"
FREE_IT = (
    "Free some space; nothing is lost and what waits goes on by itself "
    "(docs/operations/disk-full.md)."
)


def check_disks(root: Path, postgres_folder: str | None) -> list[HealthCheck]:
    """Look at every file system that the stack writes to, each once."""
    folders = {
        "disk": root,
        "disk of postgres": Path(postgres_folder) if postgres_folder else None,
        "disk of nats": root / "nats",
        "disk of s3": root / "seaweedfs",
        "disk of payloads": root / "payloads",
    }
    devices: set[int] = set()
    checks = []
    for name, folder in folders.items():
        place = None if folder is None else _first_existing((folder, *folder.parents))
        if place is not None and place.stat().st_dev not in devices:
            devices.add(place.stat().st_dev)
            checks.append(_check_disk(name, place))
    return checks


def _first_existing(folders: Iterable[Path]) -> Path:
    return next(folder for folder in folders if folder.is_dir())


def _check_disk(name: str, folder: Path) -> HealthCheck:
    free = shutil.disk_usage(folder).free
    verdict = Verdict.OK
    if free < FREE_BYTES_WARN:
        verdict = Verdict.FAIL if free < FREE_BYTES_FAIL else Verdict.WARN
    return HealthCheck(
        name=name,
        verdict=verdict,
        found=f"{free / 1024**3:.1f} GiB free at {folder}",
        way_out="" if verdict is Verdict.OK else FREE_IT,
    )
