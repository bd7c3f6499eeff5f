"""The command line against a server elsewhere, with nothing of this machine's own settings."""

import os
import subprocess
import sys
from pathlib import Path


def run_command_line(
    *arguments: str, folder: Path, server: str, token: str, timeout_s: float
) -> str:
    """Run a verb that must succeed, and return what it prints."""
    done = subprocess.run(  # noqa: S603 - our own command line
        [sys.executable, "-m", "noetl_cli", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={
            "PATH": os.defpath,
            "HOME": str(folder),
            "NOETL_CONFIG": str(folder / "config"),
            "NOETL_SERVER": server,
            "NOETL_API_KEY": token,
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
