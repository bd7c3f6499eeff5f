"""The workspaces of a worker: one an execution, with the checkouts that its tasks use."""

import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from noetl_chassis.blocking_work import run_in_thread
from noetl_chassis.clock import Clock
from noetl_contracts.lru_cache import LruCache
from noetl_storage.process.scratch import hold_scratch_folder
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.tools.calls.call import FileName
from noetl_worker.tools.calls.references import ReferenceReader
from noetl_worker.tools.calls.work_folder import WorkFolder
from noetl_worker.workspace.checkout import Checkout, WorkspaceLimits
from noetl_worker.workspace.file_journal import FileJournal

if TYPE_CHECKING:
    from noetl_worker.payloads.tenant_payloads import TenantPayloads

_JOURNALS_MAX = 256
_COUNTS_MAX = 100_000
# Checkouts that wait for the next task; each may hold a copy of all files of its execution.
_IDLE_MAX = 8

log = structlog.get_logger(__name__)


class Workspaces:
    """Journals and checkouts of the executions that this worker has work of."""

    def __init__(
        self,
        folder: Path,
        *,
        references_: ReferenceReader,
        organizations: WorkFolder,
        mask: SecretMask,
        clock: Clock,
        limits: WorkspaceLimits,
    ) -> None:
        self.root = folder
        self.mask = mask
        self.clock = clock
        self.limits = limits
        self._references = references_
        self._organizations = organizations
        self._journals = LruCache[tuple[str, str, str], FileJournal](entries_max=_JOURNALS_MAX)
        self._entries = LruCache[tuple[str, str, str], int](entries_max=_COUNTS_MAX)
        self._idle: OrderedDict[Path, tuple[tuple[str, str, str], Checkout]] = OrderedDict()

    def get_payloads(self, site: UnitScope) -> "TenantPayloads":
        """Return the payload store as the execution's organization sees it."""
        return self._references.get_payloads(site)

    def find_organization_folder(self, site: UnitScope) -> Path | None:
        """Return the folder of an organization's files, None where the worker has none."""
        return (
            self._organizations.get_files_folder(site) if self._organizations.is_lasting else None
        )

    def resolve_organization_path(self, name: FileName, site: UnitScope) -> Path:
        """Return the path of an organization's file; raises `ToolFailure`."""
        folder = self.find_organization_folder(site)
        if folder is None:
            text = (
                f"'noetl://files/{name.path}' outlives its execution, and this worker has no "
                "place for such files: set NOETL_WORKER_WORK_DIRECTORY to a folder that all "
                "workers share"
            )
            raise ToolFailure(build_error("config", text, source="files"))
        return self._organizations.resolve_path(name.path, site)

    def get_journal(self, site: UnitScope, payloads: "TenantPayloads") -> FileJournal:
        """Return the journal of an execution."""
        key = _build_key(site)
        journal = self._journals.find_value(key)
        if journal is None:
            journal = FileJournal(site.execution_id, payloads)
            self._journals.keep_value(key, journal)
        return journal

    def count_entries(self, site: UnitScope) -> int:
        """Return how long the journal of an execution is, as far as this worker has seen it."""
        return self._entries.find_value(_build_key(site)) or 0

    def note_entries(self, site: UnitScope, count: int) -> None:
        """Remember how long a journal is, also when the journal itself is forgotten."""
        key = _build_key(site)
        if count:
            self._entries.keep_value(key, max(count, self._entries.find_value(key) or 0))

    async def borrow_checkout(self, site: UnitScope) -> Checkout:
        """Take a checkout that nobody else uses, one of the same execution if there is one."""
        key = _build_key(site)
        for path, (owner, checkout) in reversed(self._idle.items()):
            if owner == key:
                del self._idle[path]
                return checkout
        return Checkout(await run_in_thread(_make_folder, self.root))

    async def give_back_checkout(
        self, checkout: Checkout, site: UnitScope, *, is_reusable: bool
    ) -> None:
        """Let the next task of the execution have a checkout; the oldest ones are removed."""
        if not is_reusable or not await self.tidy_checkout(checkout):
            await self._remove_checkout(checkout)
            return
        self._idle[checkout.folder] = (_build_key(site), checkout)
        while len(self._idle) > _IDLE_MAX:
            _, (_, oldest) = self._idle.popitem(last=False)
            await self._remove_checkout(oldest)

    async def tidy_checkout(self, checkout: Checkout) -> bool:
        """Drop what was not published; tell whether the folder may be used again."""
        try:
            await run_in_thread(checkout.drop_changes)
        except OSError as problem:
            log.info("a folder of a task is removed", reason=str(problem))
            return False
        return True

    async def _remove_checkout(self, checkout: Checkout) -> None:
        if not await run_in_thread(checkout.remove_all):
            log.warning("files of tasks are left on the disk", folder=str(checkout.folder))


def _make_folder(root: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix="files-", dir=root))


def _build_key(site: UnitScope) -> tuple[str, str, str]:
    return site.tenant_id, site.organization_id, site.execution_id


@contextmanager
def open_workspaces(
    *,
    references_: ReferenceReader,
    organizations: WorkFolder,
    mask: SecretMask,
    clock: Clock,
    limits: WorkspaceLimits,
) -> Iterator[Workspaces]:
    """Hold the folders of checkouts while the block runs."""
    with hold_scratch_folder("files") as folder:
        yield Workspaces(
            folder,
            references_=references_,
            organizations=organizations,
            mask=mask,
            clock=clock,
            limits=limits,
        )
