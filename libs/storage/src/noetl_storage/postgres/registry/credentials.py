"""Sealed credentials on PostgreSQL."""

from noetl_contracts.credentials import SealedCredential
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_storage.ports.errors import VersionConflict
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("credentials")


class PostgresCredentials:
    """Keeps every version; a version is never changed."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_credential(
        self, sealed: SealedCredential, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> None:
        """Keep a version; raises `VersionConflict` when that version of the name is taken."""
        row = await self._database.find_row(
            _QUERIES["put"],
            tenant_id,
            organization_id,
            sealed.name,
            sealed.version,
            sealed.kind,
            sealed.key_id,
            sealed.nonce,
            sealed.ciphertext,
        )
        if row is None:
            raise VersionConflict(f"credential {sealed.name!r} has a version {sealed.version}")

    async def find_credential(
        self,
        name: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        version: int | None = None,
    ) -> SealedCredential | None:
        """Return a version of a credential, the latest when none is named."""
        row = await self._database.find_row(
            _QUERIES["find"], tenant_id, organization_id, name, version
        )
        if row is None:
            return None
        return SealedCredential(
            name=row["name"],
            version=row["version"],
            kind=row["kind"],
            key_id=row["key_id"],
            nonce=row["nonce"],
            ciphertext=row["ciphertext"],
        )

    async def list_credential_names(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, names_max: int
    ) -> list[str]:
        """Return the names of all credentials, in order."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_names"], tenant_id, organization_id, names_max
        )
        return [record["name"] for record in rows]
