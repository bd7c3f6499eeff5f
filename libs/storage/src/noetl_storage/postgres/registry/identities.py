"""Role bindings, API keys and quotas of tenants on PostgreSQL."""

from collections.abc import Collection
from datetime import datetime

import asyncpg

from noetl_contracts import codec
from noetl_contracts.identity.actors import Actor, ActorKind
from noetl_contracts.identity.quotas import (
    RunningCount,
    StoredBytes,
    TenantQuota,
    TenantUsage,
)
from noetl_contracts.identity.role_bindings import (
    LOCAL_ISSUER,
    ApiKey,
    PersonGroups,
    RoleBinding,
    SubjectKind,
)
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_storage.ports.identity_ports import KeyRoles, SubjectNames
from noetl_storage.postgres import queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("identities")


class PostgresIdentities:
    """Keeps who may do what."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_binding(self, binding: RoleBinding) -> RoleBinding:
        """Keep a binding; the same one again is the one that is there."""
        row = await self._database.get_row(
            _QUERIES["put_binding"],
            int(binding.binding_id),
            binding.tenant_id,
            binding.organization_id,
            binding.subject_kind,
            binding.issuer,
            binding.subject,
            binding.role,
            binding.path_prefix,
            binding.created_by,
        )
        return _build_binding(row)

    async def remove_binding(
        self,
        binding_id: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        has_everywhere: bool = False,
    ) -> RoleBinding | None:
        """Remove a binding and return it; None when there was none.

        One that holds in all organizations is removed where the caller `has_everywhere`.
        """
        row = await self._database.find_row(
            _QUERIES["remove_binding"],
            int(binding_id),
            tenant_id,
            organization_id,
            has_everywhere,
        )
        return None if row is None else _build_binding(row)

    async def list_bindings(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, bindings_max: int
    ) -> list[RoleBinding]:
        """Return the bindings that hold in an organization, by subject."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_bindings"], tenant_id, organization_id, bindings_max
        )
        return [_build_binding(row) for row in rows]

    async def find_bindings(self, names: SubjectNames) -> list[RoleBinding]:
        """Return the bindings of somebody, in every tenant."""
        rows = await self._database.fetch_rows(
            _QUERIES["find_bindings"], names.kind, names.subject, names.issuer, list(names.groups)
        )
        return [_build_binding(row) for row in rows]

    async def put_groups(self, groups: PersonGroups) -> None:
        """Keep the groups of somebody, unless later ones are kept."""
        await self._database.execute_statement(
            _QUERIES["put_groups"],
            groups.issuer,
            groups.subject,
            list(groups.groups),
            groups.seen_at,
        )

    async def find_groups(self, *, issuer: str, subject: str) -> PersonGroups | None:
        """Return the groups that were seen last; None of who has not signed in."""
        row = await self._database.find_row(_QUERIES["find_groups"], issuer, subject)
        return None if row is None else codec.convert_value(dict(row), PersonGroups)

    async def put_key(self, key: ApiKey) -> None:
        """Keep an API key; raises `VersionConflict` for a prefix that is taken."""
        await self._database.execute_statement(
            _QUERIES["put_key"],
            key.key_prefix,
            key.tenant_id,
            key.organization_id,
            key.account,
            key.account_kind,
            key.digest,
            key.created_by,
            key.expires_at,
            None if key.maker is None else key.maker.kind,
            None if key.maker is None else key.maker.issuer,
            None if key.maker is None else key.maker.id,
        )

    async def find_key(self, key_prefix: str) -> ApiKey | None:
        """Return an API key by its prefix, revoked or not."""
        row = await self._database.find_row(_QUERIES["find_key"], key_prefix)
        return None if row is None else _build_key(row)

    async def find_key_roles(self, key_prefix: str) -> KeyRoles | None:
        """Return an API key by its prefix with the bindings of its account, in one request."""
        row = await self._database.find_row(_QUERIES["find_key_roles"], key_prefix, LOCAL_ISSUER)
        if row is None:
            return None
        return KeyRoles(
            key=_build_key(row), bindings=tuple(_build_binding(item) for item in row["bindings"])
        )

    async def list_keys(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, keys_max: int
    ) -> list[ApiKey]:
        """Return the API keys of an organization, by account."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_keys"], tenant_id, organization_id, keys_max
        )
        return [_build_key(row) for row in rows]

    async def revoke_key(
        self, key_prefix: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Make a key open nothing any more; False when there is none that does."""
        row = await self._database.find_row(
            _QUERIES["revoke_key"], key_prefix, tenant_id, organization_id
        )
        return row is not None

    async def note_key_use(self, key_prefix: str, used_at: datetime) -> None:
        """Keep when a key was used last."""
        await self._database.execute_statement(_QUERIES["note_key_use"], key_prefix, used_at)

    async def has_any_key(self) -> bool:
        """Tell whether there is an API key that was not revoked."""
        return bool(await self._database.get_value(_QUERIES["has_any_key"]))

    async def has_tenant(self, tenant_id: TenantId) -> bool:
        """Tell whether anything is kept for a tenant: roles, playbooks, runs, a quota, records."""
        return bool(await self._database.get_value(_QUERIES["has_tenant"], tenant_id))

    async def find_other_tenant(self, tenant_id: TenantId) -> TenantId | None:
        """Return a tenant besides this one of which anything is kept; None where there is none."""
        query = _QUERIES["find_other_tenant"]
        other: str | None = await self._database.get_value(query, tenant_id)
        return None if other is None else TenantId(other)

    async def has_organization(self, tenant_id: TenantId, organization_id: OrganizationId) -> bool:
        """Tell whether anything is kept for an organization: roles, playbooks, runs, records."""
        query = _QUERIES["has_organization"]
        return bool(await self._database.get_value(query, tenant_id, organization_id))


class PostgresQuotas:
    """Keeps what tenants may use."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_quota(self, quota: TenantQuota) -> None:
        """Keep what a tenant may use; an empty quota takes the bounds away."""
        if quota.is_empty:
            await self._database.execute_statement(_QUERIES["remove_quota"], quota.tenant_id)
        else:
            await self._database.execute_statement(
                _QUERIES["put_quota"],
                quota.tenant_id,
                quota.running_max,
                quota.calls_per_s,
                quota.stored_bytes_max,
                quota.is_suspended,
            )

    async def find_quota(self, tenant_id: TenantId) -> TenantQuota | None:
        """Return what a tenant may use; None where nothing bounds it."""
        row = await self._database.find_row(_QUERIES["find_quota"], tenant_id)
        return None if row is None else codec.convert_value(dict(row), TenantQuota)

    async def list_usage(
        self, *, tenant_id: TenantId | None, after: str, tenants_max: int
    ) -> list[TenantUsage]:
        """Return quotas with what runs, by tenant; of one tenant alone where it is named."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_usage"], tenant_id, after, tenants_max
        )
        return [_build_usage(row) for row in rows]

    async def find_stored(self, tenant_id: TenantId) -> StoredBytes | None:
        """Return what a tenant was counted to store; None where nobody has counted it."""
        row = await self._database.find_row(_QUERIES["find_stored"], tenant_id)
        return None if row is None else codec.convert_value(dict(row), StoredBytes)

    async def list_bounded_tenants(self) -> list[TenantId]:
        """Return the tenants whose quota bounds what they store, in order."""
        rows = await self._database.fetch_rows(_QUERIES["list_bounded_tenants"])
        return [TenantId(row["tenant_id"]) for row in rows]

    async def put_stored(self, tenant_id: TenantId, stored: StoredBytes) -> None:
        """Keep what a tenant stores, instead of what was counted before."""
        await self._database.execute_statement(
            _QUERIES["put_stored"], tenant_id, stored.stored_bytes, stored.counted_at
        )

    async def count_running(
        self, tenant_id: TenantId, *, begun: Collection[ExecutionId], running_max: int
    ) -> RunningCount:
        """Count what has not ended, up to `running_max`; say which of `begun` are not shown yet."""
        row = await self._database.get_row(
            _QUERIES["count_running"], tenant_id, running_max, [int(item) for item in begun]
        )
        return RunningCount(
            running=row["running"], unshown=frozenset(map(ExecutionId, row["unshown"]))
        )


def _build_usage(row: asyncpg.Record) -> TenantUsage:
    quota = TenantQuota(
        tenant_id=TenantId(row["tenant_id"]),
        running_max=row["running_max"],
        calls_per_s=row["calls_per_s"],
        stored_bytes_max=row["stored_bytes_max"],
        is_suspended=row["is_suspended"],
    )
    stored = (
        None
        if row["counted_at"] is None
        else StoredBytes(stored_bytes=row["stored_bytes"], counted_at=row["counted_at"])
    )
    return TenantUsage(quota=quota, running=row["running"], stored=stored)


def _build_binding(row: asyncpg.Record) -> RoleBinding:
    return RoleBinding(
        binding_id=str(row["binding_id"]),
        tenant_id=TenantId(row["tenant_id"]),
        organization_id=OrganizationId(row["organization_id"]),
        subject_kind=SubjectKind(row["subject_kind"]),
        issuer=row["issuer"],
        subject=row["subject"],
        role=row["role"],
        path_prefix=row["path_prefix"],
        created_by=row["created_by"],
        created_at=row["created_at"],
    )


def _build_key(row: asyncpg.Record) -> ApiKey:
    return ApiKey(
        key_prefix=row["key_prefix"],
        tenant_id=TenantId(row["tenant_id"]),
        organization_id=OrganizationId(row["organization_id"]),
        account=row["account"],
        account_kind=SubjectKind(row["account_kind"]),
        digest=row["digest"],
        created_by=row["created_by"],
        maker=_build_maker(row),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        used_at=row["used_at"],
        revoked_at=row["revoked_at"],
    )


def _build_maker(row: asyncpg.Record) -> Actor | None:
    if row["maker_kind"] is None:
        return None
    return Actor(kind=ActorKind(row["maker_kind"]), issuer=row["maker_issuer"], id=row["maker_id"])
