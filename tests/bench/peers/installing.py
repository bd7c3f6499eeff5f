"""Environments of other engines: made once by uv from hash-pinned requirements, kept in a cache directory."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from noetl_contracts import codec

REQUIREMENTS = Path("requirements")
# As in the Makefile, which hands its own on.
OWN_UV = Path(".uv/bin/uv")
ERROR = re.compile(r"[\w.]*(?:Error|Exception)\b.*:")


class PeerError(Exception):
    """An engine did not install, start or finish; the text is its own last word."""


def installed(name: str) -> tuple[Path, str]:
    """Return the interpreter of an engine's environment and its version, installing it if need be."""
    wanted = REQUIREMENTS / f"peers-{name}.txt"
    folder = cache() / f"{name}-{codec.digest_hex(wanted.read_bytes())[:12]}"
    python = folder / "bin" / "python"
    if not (folder / ".complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        uv = uv_program()
        _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
        into = ["--python", str(python)]
        _run([uv, "pip", "install", "--quiet", *into, "--require-hashes", "-r", str(wanted)])
        (folder / ".complete").touch()
    return python, version_of(name, wanted.read_text())


def version_of(name: str, requirements: str) -> str:
    """Read which version is pinned."""
    pins = (line.split()[0] for line in requirements.splitlines() if line.startswith(f"{name}"))
    return next((pin.partition("==")[2] for pin in pins if _is_pin_of(pin, name)), "")


def _is_pin_of(pin: str, name: str) -> bool:
    return pin.partition("==")[0].partition("[")[0] == name


def cache() -> Path:
    """Return where environments are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "noetl-bench"


def uv_program() -> str:
    """Return the path of uv."""
    found = os.environ.get("UV") or shutil.which("uv") or str(OWN_UV)
    if shutil.which(found) is None:
        raise PeerError(f"{found} is not there: `make setup` installs it, or set UV")
    return found


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)  # noqa: S603 - our own command line
    if done.returncode:
        raise PeerError(last_line(done.stderr))


def last_line(text: str) -> str:
    """Take the line that says most: the last that names an error, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["it said nothing"]
    named = [line for line in lines if ERROR.match(line)]
    return (named or lines)[-1][:200].replace("|", "/")
