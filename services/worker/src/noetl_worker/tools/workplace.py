"""The worker's own directory, in which tasks may work: one part per organization."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sites import Site


class Workplace:
    """Hands out directories below one root and nowhere else."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()

    def home(self, site: Site) -> Path:
        """Return the part of an organization."""
        return self.root / site.tenant_id / site.organization_id

    @contextmanager
    def enter(self, given: Any, site: Site) -> Iterator[Path]:
        """Hold the directory that a task names, or a private one that goes away afterwards.

        Raises `ToolFailure` for a directory outside.
        """
        home = self.home(site)
        if given is not None:
            directory = within(home, given, what="field 'cwd'")
            directory.mkdir(parents=True, exist_ok=True)
            yield directory
            return
        home.mkdir(parents=True, exist_ok=True)
        private = Path(tempfile.mkdtemp(prefix="task-", dir=home))
        try:
            yield private
        finally:
            shutil.rmtree(private, ignore_errors=True)


def within(root: Path, given: Any, *, what: str) -> Path:
    """Resolve a path below a root, links included; raises `ToolFailure` when it leads out."""
    if not isinstance(given, str) or not given or "\0" in given:
        raise ToolFailure(failure("validation", f"{what} must be a path, not {given!r}"))
    base = root.resolve()
    found = (base / given).resolve()
    if not found.is_relative_to(base):
        text = f"{what}: '{given}' leads out of the directory that tasks may use"
        raise ToolFailure(failure("config", text))
    return found


@contextmanager
def open_workplace(directory: str) -> Iterator[Workplace]:
    """Use a directory that stays, or make one that lives as long as the block."""
    if directory:
        Path(directory).mkdir(parents=True, exist_ok=True)
        yield Workplace(Path(directory))
        return
    temporary = Path(tempfile.mkdtemp(prefix="noetl-work-"))
    try:
        yield Workplace(temporary)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
