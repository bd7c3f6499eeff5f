"""Probes which isolation of tasks this machine grants a worker, for `noetl doctor`."""

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from noetl_cli.stack.processes.health_check import HealthCheck, Verdict

PROGRAM = "noetl_worker.sandbox.confinement"
# What a wall keeps from the code of a task.
PURPOSES = {
    "reading": "files outside its workspace cannot be read",
    "writing": "files outside its workspace cannot be changed",
    "attributes": "size, rights and times of other files can be neither read nor set",
    "sockets": "UNIX sockets of other programs cannot be reached",
    "network": "nothing is reached unless spec.network: true is granted",
    "processes": "memory and environment of other processes cannot be read",
    "signals": "other processes cannot be ended",
}
ADVICE = "For authors whom you do not trust, run each worker in a container of its own."
_PROBE_S = 30.0


def check_task_walls() -> list[HealthCheck]:
    """Confine a process as a worker confines tasks, and tell which walls it was granted."""
    try:
        missing = _probe_walls()
    except (OSError, subprocess.SubprocessError, msgspec.MsgspecError) as problem:
        text = f"a process cannot be confined: {problem}"
        return [HealthCheck(name="task walls", verdict=Verdict.WARN, found=text, way_out=ADVICE)]
    return [
        HealthCheck(
            name=f"task wall {wall}",
            verdict=Verdict.WARN if wall in missing else Verdict.OK,
            found=f"missing: {missing[wall]}" if wall in missing else purpose,
            way_out=ADVICE if wall in missing else "",
        )
        for wall, purpose in PURPOSES.items()
    ]


def _probe_walls() -> dict[str, str]:
    """Return the reason for each wall that is missing; raises `SubprocessError` and others."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "own")
        path.mkdir()
        bounds = msgspec.json.encode({"write": [str(path)]}).decode()
        process = subprocess.run(  # noqa: S603 - it is the program that confines tasks
            [sys.executable, "-I", "-m", PROGRAM, bounds, "--describe"],
            capture_output=True,
            check=True,
            cwd=path,
            timeout=_PROBE_S,
        )
    return msgspec.json.decode(process.stdout, type=dict[str, str])
