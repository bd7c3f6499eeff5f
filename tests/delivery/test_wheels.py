"""The wheels, in an environment that holds nothing else and far from the source tree."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
VERSION = "7.6.5"
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: squares, path: delivery/squares}
workflow:
  - step: squares
    tool:
      kind: python
      code: |
        def main():
            return {"sum": sum(number * number for number in range(5))}
"""
# How this machine reaches the index of packages; nothing of this checkout.
OUTSIDE = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYTHON", "NOETL_", "PYTEST", "VIRTUAL_ENV"))
} | {"PATH": os.defpath}


def find_uv() -> str:
    found = shutil.which("uv") or str(ROOT / ".uv/bin/uv")
    assert Path(found).is_file(), "uv is missing: run `make setup`"
    return found


def run(*command: str | Path, folder: Path, **environ: str) -> str:
    """Run a command with an environment that knows nothing of this checkout."""
    done = subprocess.run(  # noqa: S603 - our own programs
        [str(part) for part in command],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=240,
        env={**OUTSIDE, **environ},
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    command = (sys.executable, ROOT / "scripts/wheels", "--out", folder, "--version", VERSION)
    assert run(*command, folder=folder, UV=find_uv()) == f"{VERSION}\n"
    return folder


def read_metadata(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return archive.read(name).decode()


def test_every_wheel_has_the_version_the_licence_and_needs_its_own_release(wheels: Path) -> None:
    built = sorted(wheels.glob("*.whl"))
    folders = [*ROOT.glob("libs/*/pyproject.toml"), *ROOT.glob("services/*/pyproject.toml")]
    assert len(built) == len(folders) + 1
    for wheel in built:
        metadata = read_metadata(wheel)
        assert f"\nVersion: {VERSION}\n" in metadata
        assert "\nLicense-File: LICENSE\n" in metadata
        needs = re.findall(r"^Requires-Dist: (noetl-\S+)", metadata, re.MULTILINE)
        assert [need for need in needs if not need.endswith(f"=={VERSION}")] == []


def test_one_name_brings_everything_and_extras_bring_the_rest(wheels: Path) -> None:
    (whole,) = wheels.glob("noetl-[0-9]*.whl")
    metadata = read_metadata(whole)
    extras = set(re.findall(r"^Provides-Extra: (.+)$", metadata, re.MULTILINE))
    assert {"spark", "lake", "gcs", "azure", "otlp", "keyring", "all"} <= extras
    needs = re.findall(r"^Requires-Dist: (.+) ; extra == '(.+)'$", metadata, re.MULTILINE)
    parts = {need for need, extra in needs if extra != "all"}
    taken = {need for need, extra in needs if extra == "all"}
    names = {re.split(r"[\[=>]", need)[0] for need in parts}
    assert {re.split(r"[\[=>]", need)[0] for need in taken} == names
    assert not re.search(r"^Requires-Dist: noetl-worker\[[^;]+$", metadata, re.MULTILINE)


@pytest.fixture(scope="module")
def installed(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the `bin` of an environment with the wheels, and with the versions that are tested."""
    folder = tmp_path_factory.mktemp("installed")
    pins = re.findall(r"^[a-z0-9._-]+(?:\[[a-z,]+\])?==[^ ]+", read_pins(), re.MULTILINE)
    (folder / "pins.txt").write_text("\n".join(re.sub(r"\[.*\]", "", pin) for pin in pins))
    uv = find_uv()
    run(uv, "venv", "--quiet", "--python", sys.executable, "empty", folder=folder)
    install = (uv, "pip", "install", "--quiet", "--python", "empty/bin/python")
    run(*install, "--find-links", wheels, "-c", "pins.txt", f"noetl=={VERSION}", folder=folder)
    return folder / "empty/bin"


def read_pins() -> str:
    return (ROOT / "requirements/cli.txt").read_text()


@pytest.fixture
def home(installed: Path, tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    run(installed / "noetl", "down", "--purge", folder=tmp_path, **environ_of(tmp_path))


def environ_of(folder: Path) -> dict[str, str]:
    return {"HOME": str(folder), "NOETL_HOME": str(folder / "home"), "NO_COLOR": "1"}


def test_a_playbook_runs_on_a_stack_that_the_wheels_brought(
    installed: Path, home: Path, tmp_path: Path
) -> None:
    environ = environ_of(tmp_path)
    python, noetl = installed / "python", installed / "noetl"
    place = run(python, "-c", "import noetl_cli; print(noetl_cli.__file__)", folder=tmp_path)
    assert Path(place.strip()).is_relative_to(installed.parent)
    assert run(noetl, "--version", folder=tmp_path, **environ) == f"noetl {VERSION}\n"
    (tmp_path / "squares.yaml").write_text(PLAYBOOK)
    run(noetl, "lint", "squares.yaml", folder=tmp_path, **environ)
    run(noetl, "up", folder=tmp_path, **environ)
    ended = run(noetl, "run", "squares.yaml", "--json", folder=tmp_path, **environ)
    execution = str(msgspec.json.decode(ended.splitlines()[-1])["execution_id"])
    result = run(noetl, "result", execution, "squares", folder=tmp_path, **environ)
    assert re.search(r"\bsum\b\W+30\b", result)
    run(noetl, "down", folder=tmp_path, **environ)
    assert home.is_dir()
