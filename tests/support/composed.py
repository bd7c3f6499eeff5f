"""The files of compose as they are read, and what its first start makes beside them."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy/compose"
CONSUMERS = ("postgres", "nats", "s3", "jobs")
SERVICES = ("planner", "worker", "projector", "outbox", "reaper")
# What starts with a profile alone.
PROFILES = {
    "spark": ("spark-master", "spark-worker", "worker-spark"),
    "observability": ("prometheus", "grafana", "collector"),
}


def read_services() -> dict[str, dict[str, Any]]:
    """Read every service and job, by name; merge keys of YAML are followed."""
    found: dict[str, dict[str, Any]] = {}
    for file in ("platform", "services", *PROFILES):
        found |= yaml.safe_load((COMPOSE / f"{file}.yaml").read_text())["services"]
    return found


def list_bus_users() -> tuple[str, ...]:
    """List the users of NATS, each of whose passwords its configuration takes from a variable."""
    told = (COMPOSE / "nats.conf").read_text()
    return tuple(name.lower() for name in re.findall(r"\$NATS_([A-Z_]+)_PASSWORD", told))


def make_secrets(folder: Path, *arguments: str, **given: str) -> subprocess.CompletedProcess[str]:
    """Run the job of the first start with folders of its own in place of volumes."""
    for name in (*CONSUMERS, *SERVICES):
        (folder / "made" / name).mkdir(parents=True, exist_ok=True)
    (folder / "secrets").mkdir(exist_ok=True)
    return subprocess.run(  # noqa: S603 - a script of ours
        ["/bin/sh", str(COMPOSE / "secrets.sh"), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={
            "PATH": os.defpath,
            "SECRETS_FOLDER": str(folder / "secrets"),
            "MADE_FOLDER": str(folder / "made"),
            **given,
        },
    )


def read_made(folder: Path, consumer: str) -> dict[str, str]:
    """Read what the job made for one container."""
    lines = (folder / "made" / consumer / "environment").read_text().splitlines()
    pairs = (line.partition("=") for line in lines)
    return {name: value.strip("'") for name, _, value in pairs}
