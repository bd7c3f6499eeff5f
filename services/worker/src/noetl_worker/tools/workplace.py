"""The work directory: every organization has its own part, and no path leads out of it."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from noetl_contracts import codec
from noetl_storage.scratch import own_folder
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sites import Site

_OWNER = re.compile(r"[A-Za-z0-9_-]{1,64}")
_EXECUTION = re.compile(r"[0-9]{1,20}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_FILE = "file://"


class WorkFolder:
    """One directory that the workers of a deployment share."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def files(self, site: Site) -> Path:
        """Return the folder of an organization's own files, made when it is new."""
        return self._folder(site, "files")

    @contextmanager
    def enter(self, given: Any, site: Site) -> Iterator[Path]:
        """Hold the directory that a task names, or a private one that goes away afterwards.

        Raises `ToolFailure` for a directory outside.
        """
        home = self.files(site)
        if given is not None:
            directory = within(home, given, what="field 'cwd'")
            directory.mkdir(parents=True, exist_ok=True)
            yield directory
            return
        private = Path(tempfile.mkdtemp(prefix="task-", dir=home))
        try:
            yield private
        finally:
            shutil.rmtree(private, ignore_errors=True)

    def execution_database(self, site: Site) -> Path:
        """Return the file of the database that all duckdb tasks of an execution share."""
        if not _EXECUTION.fullmatch(site.execution_id):
            raise _refused(f"execution {site.execution_id!r:.60} cannot name a file")
        return self._folder(site, "executions") / f"{site.execution_id}.duckdb"

    def lock_of(self, path: Path, site: Site) -> Path:
        """Return the file whose lock says who uses a database."""
        return self._folder(site, "locks") / codec.digest(str(path).encode())

    def resolve(self, text: str, site: Site) -> Path:
        """Return the real path of a file, relative or absolute or a `file://` address.

        Raises `ToolFailure` when it is, or links, outside the organization's part.
        """
        folder = self.files(site).resolve()
        name = unquote(text.removeprefix(_FILE)) if text.startswith(_FILE) else text
        if not name or _CONTROL.search(name):
            raise _refused(f"{text!r:.120} is not a file name")
        if ".." in Path(name).parts:
            raise _refused(f"{text!r:.120} climbs out of its folder: write the path without '..'")
        path = (folder / name).resolve()
        if not path.is_relative_to(folder) or path == folder:
            raise _refused(
                f"{text!r:.120} is outside the work directory: use a path below {folder}, "
                "such as 'data/rows.csv'"
            )
        return path

    def _folder(self, site: Site, name: str) -> Path:
        for owner in (site.tenant_id, site.organization_id):
            if not _OWNER.fullmatch(owner):
                raise _refused(f"{owner!r:.80} cannot name a folder: 1 to 64 of [A-Za-z0-9_-]")
        folder = self.root / "tenant" / site.tenant_id / "org" / site.organization_id / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder


def within(root: Path, given: Any, *, what: str) -> Path:
    """Resolve a path below a root, links included; raises `ToolFailure` when it leads out."""
    if not isinstance(given, str) or not given or "\0" in given:
        raise ToolFailure(failure("validation", f"{what} must be a path, not {given!r}"))
    base = root.resolve()
    found = (base / given).resolve()
    if not found.is_relative_to(base):
        raise _refused(f"{what}: '{given}' leads out of the directory that tasks may use")
    return found


@contextmanager
def open_work_folder(root: str) -> Iterator[WorkFolder]:
    """Use a directory, or one of this process's own that ends with the block."""
    if root:
        Path(root).mkdir(parents=True, exist_ok=True)
        yield WorkFolder(Path(root))
        return
    with own_folder("work") as own:
        yield WorkFolder(own)


def _refused(text: str) -> ToolFailure:
    return ToolFailure(failure("config", text))
