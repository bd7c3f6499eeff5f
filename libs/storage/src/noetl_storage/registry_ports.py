"""What is asked of the registry: playbooks by path, credentials by name, each by version."""

from typing import Protocol

from noetl_contracts.credentials import SealedCredential
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.ledger import CatalogEntry


class Catalog(Protocol):
    """Registered playbooks."""

    async def register(self, entry: CatalogEntry) -> CatalogEntry:
        """Keep a playbook as the next version of its path; the same one keeps its version."""

    async def register_all(self, entries: list[CatalogEntry]) -> list[CatalogEntry]:
        """Keep playbooks of different paths as `register` does, all of them or none."""

    async def keep_draft(self, entry: CatalogEntry) -> CatalogEntry:
        """Keep a playbook as a draft of its path, below version zero; the same text keeps it."""

    async def find(
        self,
        path: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        version: int | None = None,
    ) -> CatalogEntry | None:
        """Return a version or a draft of a playbook, the latest version when none is named."""

    async def get(self, catalog_id: str) -> CatalogEntry:
        """Return an entry by identity; raises `KeyError`."""

    async def list_paths(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, entries_max: int
    ) -> list[CatalogEntry]:
        """Return the latest version of every playbook, by path."""


class Credentials(Protocol):
    """Sealed credentials by name and version; nobody here can open them."""

    async def put(
        self, sealed: SealedCredential, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> None:
        """Keep a version; raises `VersionConflict` when that version of the name is taken."""

    async def find(
        self,
        name: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        version: int | None = None,
    ) -> SealedCredential | None:
        """Return a version of a credential, the latest when none is named."""

    async def list_names(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, names_max: int
    ) -> list[str]:
        """Return the names of all credentials, in order."""
