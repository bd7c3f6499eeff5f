"""Every history of a stack replayed and compared, by the command that is there for it."""

import os
import subprocess
import sys
from typing import Any

import msgspec
from tests.support.stack import Stack

PATIENCE_S = 3_600.0


def audit(stack: Stack) -> dict[str, Any]:
    """Follow every chain, fold every history, compare every row; return the summary as it is."""
    command = (sys.executable, "-m", "noetl_cli", "audit", "run", "--dir", str(stack.folder))
    done = subprocess.run(  # noqa: S603 - our own command line
        [*command, "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={"PATH": os.defpath, "HOME": str(stack.folder.parent)},
    )
    try:
        found: dict[str, Any] = msgspec.json.decode(done.stdout.splitlines()[-1])
    except (IndexError, msgspec.DecodeError):
        return {"failure": (done.stdout + done.stderr)[-2000:]}
    return found


def restarts(stack: Stack) -> dict[str, int]:
    """Count how often the supervisor had to start a process again, of those that it did."""
    counts = {name: int(item["restarts"]) for name, item in stack.state["processes"].items()}
    return {name: count for name, count in counts.items() if count}


def audit_wrong(found: dict[str, Any]) -> list[str]:
    """Say what an audit found that must not be."""
    if "failure" in found:
        return [f"the audit failed: {found['failure']}"]
    is_whole = found["damaged"] == 0 and found["projected"] == {"same": found["executions"]}
    return [] if is_whole else [f"the audit found {found['projected']}, {found['damage'][:3]}"]
