"""Ports of identity: role bindings, API keys, and the administration stream."""

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from noetl_contracts.identity.administration import AdministrationRecord, NewRecord, RecordFilter
from noetl_contracts.identity.quotas import (
    RunningCount,
    StoredBytes,
    TenantQuota,
    TenantUsage,
)
from noetl_contracts.identity.role_bindings import ApiKey, PersonGroups, RoleBinding
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId


class SubjectNames(Struct, frozen=True, kw_only=True):
    """By what names bindings mean somebody: the own identity, and groups."""

    kind: str
    subject: str
    issuer: str = ""
    groups: tuple[str, ...] = ()


class KeyRoles(Struct, frozen=True, kw_only=True):
    """An API key, revoked or not, and the bindings of its account in every tenant."""

    key: ApiKey
    bindings: tuple[RoleBinding, ...]


class Identities(Protocol):
    """Who may do what: bindings of roles, and API keys by their prefixes."""

    async def put_binding(self, binding: RoleBinding) -> RoleBinding:
        """Keep a binding; the same one again is the one that is there."""

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

    async def list_bindings(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, bindings_max: int
    ) -> list[RoleBinding]:
        """Return the bindings that hold in an organization, by subject."""

    async def find_bindings(self, names: SubjectNames) -> list[RoleBinding]:
        """Return the bindings of somebody, in every tenant."""

    async def put_groups(self, groups: PersonGroups) -> None:
        """Keep the groups of somebody, unless later ones are kept."""

    async def find_groups(self, *, issuer: str, subject: str) -> PersonGroups | None:
        """Return the groups that were seen last; None of who has not signed in."""

    async def put_key(self, key: ApiKey) -> None:
        """Keep an API key; raises `VersionConflict` for a prefix that is taken."""

    async def find_key(self, key_prefix: str) -> ApiKey | None:
        """Return an API key by its prefix, revoked or not."""

    async def find_key_roles(self, key_prefix: str) -> KeyRoles | None:
        """Return an API key by its prefix with the bindings of its account, in one request."""

    async def list_keys(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, keys_max: int
    ) -> list[ApiKey]:
        """Return the API keys of an organization, by account."""

    async def revoke_key(
        self, key_prefix: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Make a key open nothing any more; False when there is none that does."""

    async def note_key_use(self, key_prefix: str, used_at: datetime) -> None:
        """Keep when a key was used last."""

    async def has_any_key(self) -> bool:
        """Tell whether there is an API key that was not revoked."""

    async def has_tenant(self, tenant_id: TenantId) -> bool:
        """Tell whether anything is kept for a tenant: roles, playbooks, runs, a quota, records."""

    async def find_other_tenant(self, tenant_id: TenantId) -> TenantId | None:
        """Return a tenant besides this one of which anything is kept; None where there is none."""

    async def has_organization(self, tenant_id: TenantId, organization_id: OrganizationId) -> bool:
        """Tell whether anything is kept for an organization: roles, playbooks, runs, records."""


class Quotas(Protocol):
    """What tenants may use at most."""

    async def put_quota(self, quota: TenantQuota) -> None:
        """Keep what a tenant may use; an empty quota takes the bounds away."""

    async def find_quota(self, tenant_id: TenantId) -> TenantQuota | None:
        """Return what a tenant may use; None where nothing bounds it."""

    async def list_usage(
        self, *, tenant_id: TenantId | None, after: str, tenants_max: int
    ) -> list[TenantUsage]:
        """Return quotas with what runs, by tenant; of one tenant alone where it is named."""

    async def find_stored(self, tenant_id: TenantId) -> StoredBytes | None:
        """Return what a tenant was counted to store; None where nobody has counted it."""

    async def count_running(
        self, tenant_id: TenantId, *, begun: Collection[ExecutionId], running_max: int
    ) -> RunningCount:
        """Count what has not ended, up to `running_max`; say which of `begun` are not shown yet."""


class StorageCounts(Protocol):
    """What tenants have in the payload store, of those whose quota bounds it."""

    async def list_bounded_tenants(self) -> list[TenantId]:
        """Return the tenants whose quota bounds what they store, in order."""

    async def put_stored(self, tenant_id: TenantId, stored: StoredBytes) -> None:
        """Keep what a tenant stores, instead of what was counted before."""


class AdministrationLog(Protocol):
    """The streams of administration records, one for each organization."""

    def open_change(self) -> AbstractAsyncContextManager[None]:
        """Run what is stored within, and the records appended, as one transaction."""

    async def hold_stream(self, *, tenant_id: TenantId, organization_id: OrganizationId) -> None:
        """Let other changes of an organization wait until the change of this task has ended."""

    async def append_record(self, record: NewRecord) -> AdministrationRecord:
        """Seal a record behind the last of its stream."""

    async def list_records(
        self,
        record_filter: RecordFilter,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        after_version: int,
        records_max: int,
    ) -> list[AdministrationRecord]:
        """Return records after a version that a filter accepts, in order."""

    async def list_latest_records(
        self,
        record_filter: RecordFilter,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        records_max: int,
    ) -> list[AdministrationRecord]:
        """Return the latest records that a filter accepts, in order."""
