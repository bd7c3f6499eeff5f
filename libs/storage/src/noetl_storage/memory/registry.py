"""Registry in memory: snapshots, catalog and credentials."""

from msgspec import structs

from noetl_contracts.credentials import SealedCredential
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import CatalogEntry, Snapshot
from noetl_storage.memory.store import MemoryStore
from noetl_storage.ports.errors import VersionConflict
from noetl_storage.ports.history_ports import compute_thinned_span


class MemorySnapshots:
    """Keeps the latest snapshot of each execution."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def find_snapshot(self, execution_id: ExecutionId) -> Snapshot | None:
        """Return the latest snapshot, or None."""
        return self._store.snapshot_by_execution.get(execution_id)

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot unless a later one is there."""
        former = self._store.snapshot_by_execution.get(snapshot.execution_id)
        if former is None or former.version <= snapshot.version:
            self._store.snapshot_by_execution[snapshot.execution_id] = snapshot


class MemoryPast:
    """Keeps snapshots of earlier positions, spread over each history."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def find_snapshot_before(
        self, execution_id: ExecutionId, version: int
    ) -> Snapshot | None:
        """Return the latest snapshot that is not beyond a version, or None."""
        snapshot_by_version = self._store.past_by_execution.get(execution_id, {})
        latest = max((item for item in snapshot_by_version if item <= version), default=None)
        return None if latest is None else snapshot_by_version[latest]

    async def keep_snapshot(self, snapshot: Snapshot, *, spacing_versions: int) -> None:
        """Keep a snapshot unless one stands so close before it; thin out those before."""
        snapshot_by_version = self._store.past_by_execution.setdefault(snapshot.execution_id, {})
        near_versions = range(snapshot.version - spacing_versions, snapshot.version + 1)
        if not any(version in near_versions for version in snapshot_by_version):
            snapshot_by_version[snapshot.version] = snapshot
        span, span_numbers = compute_thinned_span(spacing_versions), set[int]()
        for version in sorted(snapshot_by_version) if span > 1 else ():
            if version // span in span_numbers:
                del snapshot_by_version[version]
            span_numbers.add(version // span)

    async def prune_snapshots(self, *, ended_s: float, executions_max: int) -> int:
        """Forget the past of executions that ended so long ago; return how many snapshots."""
        rows = self._store.row_by_key_by_surface.get("execution", {}).values()
        before = self._store.time_after(-ended_s)
        ended_executions = [
            row["execution_id"]
            for row in rows
            if row["execution_id"] in self._store.past_by_execution
            and row["ended_at"] is not None
            and row["ended_at"] < before
        ]
        pruned_snapshots = [
            self._store.past_by_execution.pop(item) for item in ended_executions[:executions_max]
        ]
        return sum(map(len, pruned_snapshots))

    async def forget_snapshots(self, execution_id: ExecutionId) -> None:
        """Forget what is remembered of an execution's past."""
        self._store.past_by_execution.pop(execution_id, None)


def _is_same_playbook(catalog_entry: CatalogEntry, new: CatalogEntry) -> bool:
    """Tell whether a playbook is kept already: its text, and as this release reads it."""
    return catalog_entry.digest == new.digest and catalog_entry.model == new.model


class MemoryCatalog:
    """Numbers the versions of each path; an entry is never changed."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def register_playbook(self, entry: CatalogEntry) -> CatalogEntry:
        """Keep a playbook as the next version of its path; the same one keeps its version."""
        latest = await self.find_playbook(
            entry.path, tenant_id=entry.tenant_id, organization_id=entry.organization_id
        )
        if latest is not None and _is_same_playbook(latest, entry):
            return latest
        version = 1 if latest is None else latest.version + 1
        catalog_entry = structs.replace(entry, version=version, created_at=self._store.now())
        self._store.catalog.append(catalog_entry)
        return catalog_entry

    async def register_batch(self, entries: list[CatalogEntry]) -> list[CatalogEntry]:
        """Keep playbooks of different paths as `register_playbook` does, all of them or none."""
        return [await self.register_playbook(entry) for entry in entries]

    async def keep_draft(self, entry: CatalogEntry) -> CatalogEntry:
        """Keep a playbook as a draft of its path, below version zero; the same text keeps it."""
        drafts = [
            catalog_entry
            for catalog_entry in self._list_owned(entry.tenant_id, entry.organization_id)
            if catalog_entry.path == entry.path and catalog_entry.version < 0
        ]
        same_draft = next((draft for draft in drafts if _is_same_playbook(draft, entry)), None)
        if same_draft is not None:
            return same_draft
        draft_entry = structs.replace(entry, version=-len(drafts) - 1, created_at=self._store.now())
        self._store.catalog.append(draft_entry)
        return draft_entry

    async def find_playbook(
        self,
        path: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        version: int | None = None,
    ) -> CatalogEntry | None:
        """Return a version of a playbook, the latest when none is named."""
        catalog_entries = [
            entry
            for entry in self._list_owned(tenant_id, organization_id)
            if entry.path == path
            and (entry.version > 0 if version is None else entry.version == version)
        ]
        return max(catalog_entries, key=lambda entry: entry.version, default=None)

    async def get_entry(self, catalog_id: str) -> CatalogEntry:
        """Return an entry by identity; raises `KeyError`."""
        for entry in self._store.catalog:
            if entry.catalog_id == catalog_id:
                return entry
        raise KeyError(f"no catalog entry {catalog_id}")

    async def list_playbooks(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, entries_max: int
    ) -> list[CatalogEntry]:
        """Return the latest version of every playbook, by path."""
        latest: dict[str, CatalogEntry] = {}
        for entry in self._list_owned(tenant_id, organization_id):
            if entry.version > 0:
                latest[entry.path] = entry
        return [latest[path] for path in sorted(latest)][:entries_max]

    def _list_owned(
        self, tenant_id: TenantId, organization_id: OrganizationId
    ) -> list[CatalogEntry]:
        owner = (tenant_id, organization_id)
        return [
            entry
            for entry in self._store.catalog
            if (entry.tenant_id, entry.organization_id) == owner
        ]


class MemoryCredentials:
    """Keeps every version; a version is never changed."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def put_credential(
        self, sealed: SealedCredential, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> None:
        """Keep a version; raises `VersionConflict` when that version of the name is taken."""
        place = (tenant_id, organization_id, sealed.name, sealed.version)
        if place in self._store.credential_by_place:
            raise VersionConflict(f"credential {sealed.name!r} has a version {sealed.version}")
        self._store.credential_by_place[place] = sealed

    async def find_credential(
        self,
        name: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        version: int | None = None,
    ) -> SealedCredential | None:
        """Return a version of a credential, the latest when none is named."""
        sealed_credentials = [
            sealed
            for place, sealed in self._store.credential_by_place.items()
            if place[:3] == (tenant_id, organization_id, name) and version in (None, place[3])
        ]
        return max(sealed_credentials, key=lambda sealed: sealed.version, default=None)

    async def list_credential_names(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, names_max: int
    ) -> list[str]:
        """Return the names of all credentials, in order."""
        owner = (tenant_id, organization_id)
        names = {place[2] for place in self._store.credential_by_place if place[:2] == owner}
        return sorted(names)[:names_max]
