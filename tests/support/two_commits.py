"""An interpreter whose services come from two commits: a file says which service from which."""

import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
OLDER, NEWER = "older", "newer"
MIGRATIONS = "libs/storage/src/noetl_storage/postgres/migrations"
# Python runs it at every start. What names no module of ours is a child of the last one that did.
CHOICE = """\
import json, os, re, sys
from pathlib import Path

choice = json.loads(Path({file!r}).read_text())
words = re.findall(r"noetl_([a-z]+)", " ".join(sys.orig_argv))
tree = os.environ.get("NOETL_TREE_OF_TEST")
if words:
    tree = choice["trees"][choice["services"].get(words[0], "older")]
tree = tree or choice["trees"]["older"]
os.environ["NOETL_TREE_OF_TEST"] = tree
if words:
    with Path({log!r}).open("a") as log:
        log.write(f"{{os.getpid()}} {{tree}}\\n")
sys.path[:0] = [str(path) for path in Path(tree).glob("*/*/src")] + [tree + "/cli/src"]
"""


def find_earlier_commit() -> str:
    """Find the commit before the last change of the schema, or the one that is asked for."""
    if asked := os.environ.get("UPGRADE_FROM"):
        return asked
    last = read_git("log", "-n", "1", "--first-parent", "--format=%H", "--", MIGRATIONS).decode()
    return f"{last.strip()}^"


class TwoCommits:
    """An environment in a folder; `python` starts services as they were last chosen."""

    def __init__(self, folder: Path, commit: str) -> None:
        self.commit = read_git("rev-parse", "--short", commit).decode().strip()
        self._choice = folder / "choice.json"
        self._log = folder / "starts.log"
        self._trees = {OLDER: folder / OLDER, NEWER: ROOT}
        self._services: dict[str, str] = {}
        with tarfile.open(fileobj=BytesIO(read_git("archive", commit))) as archive:
            archive.extractall(self._trees[OLDER], filter="data")
        self._write_choice()
        self.python = self._make_environment(folder / "environment")

    def choose(self, service: str, tree: str) -> None:
        """Have a service started from a tree from now on."""
        self._services[service] = tree
        self._write_choice()

    def find_tree(self, pid: int) -> str:
        """Tell from which tree a process was started, by its last start."""
        starts = [line.split(" ", 1) for line in self._log.read_text().splitlines()]
        place = [path for number, path in starts if int(number) == pid][-1]
        return next(name for name, path in self._trees.items() if str(path) == place)

    def run(self, *arguments: str, environ: Mapping[str, str]) -> None:
        """Run a job that must succeed."""
        done = subprocess.run(  # noqa: S603 - our own job
            [str(self.python), *arguments],
            check=False,
            capture_output=True,
            text=True,
            env={"PATH": os.defpath, **environ},
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _write_choice(self) -> None:
        trees = {name: str(path) for name, path in self._trees.items()}
        whole = msgspec.json.encode({"trees": trees, "services": self._services})
        # A service may read it at any moment.
        draft = self._choice.with_suffix(".new")
        draft.write_bytes(whole)
        draft.replace(self._choice)

    def _make_environment(self, folder: Path) -> Path:
        """Make an environment with the packages of this one, but for our own."""
        subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True
        )
        packages = folder / f"lib/python{sysconfig.get_python_version()}/site-packages"
        # Its own lists of paths are not read there: ours are not found.
        (packages / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (packages / "sitecustomize.py").write_text(
            CHOICE.format(file=str(self._choice), log=str(self._log))
        )
        for program in Path(sys.executable).parent.iterdir():
            if not (folder / "bin" / program.name).exists():
                (folder / "bin" / program.name).symlink_to(program)
        return folder / "bin/python"


def read_git(*arguments: str) -> bytes:
    return subprocess.run(  # noqa: S603 - of this repository
        ["git", *arguments],  # noqa: S607 - wherever it is installed
        check=True,
        capture_output=True,
        cwd=ROOT,
    ).stdout
