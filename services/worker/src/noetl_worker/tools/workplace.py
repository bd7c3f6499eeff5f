"""The folders below the work directory: files that outlive executions, and locks.

Every organization has its own part, and no path leads out of it.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from noetl_contracts import codec
from noetl_storage.scratch import own_folder
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sites import Site

_OWNER = re.compile(r"[A-Za-z0-9_-]{1,64}")


class WorkFolder:
    """One directory; it is lasting where an operator has named it, and else ends with the worker.

    Workers that share a lasting one respect each other's locks.
    """

    def __init__(self, root: Path, *, is_lasting: bool = True) -> None:
        self.root = root.resolve()
        self.is_lasting = is_lasting

    def files(self, site: Site) -> Path:
        """Return the folder of an organization's own files, made when it is new."""
        return self._folder(site, "files")

    def lock_of(self, path: Path, site: Site) -> Path:
        """Return the file whose lock says who uses a file."""
        return self._folder(site, "locks") / codec.digest(str(path).encode())

    def resolve(self, path: str, site: Site) -> Path:
        """Return the real path of an organization's file.

        Raises `ToolFailure` when a link leads out of the organization's part.
        """
        folder = self.files(site).resolve()
        try:
            found = (folder / path).resolve()
        except (OSError, RuntimeError) as problem:
            raise _refused(f"{path!r:.120} cannot be followed: {problem}") from problem
        if not found.is_relative_to(folder) or found == folder:
            text = f"{path!r:.120} leads out of the folder of the organization's files"
            raise _refused(text)
        return found

    def _folder(self, site: Site, name: str) -> Path:
        for owner in (site.tenant_id, site.organization_id):
            if not _OWNER.fullmatch(owner):
                raise _refused(f"{owner!r:.80} cannot name a folder: 1 to 64 of [A-Za-z0-9_-]")
        folder = self.root / "tenant" / site.tenant_id / "org" / site.organization_id / name
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder


@contextmanager
def open_work_folder(root: str) -> Iterator[WorkFolder]:
    """Use a directory, or one of this process's own that ends with the block."""
    if root:
        Path(root).mkdir(parents=True, exist_ok=True)
        yield WorkFolder(Path(root))
        return
    with own_folder("work") as own:
        yield WorkFolder(own, is_lasting=False)


def _refused(text: str) -> ToolFailure:
    return ToolFailure(failure("config", text))
