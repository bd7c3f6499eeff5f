"""Role bindings, API keys, sessions, quotas and administration records in memory."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import datetime

from msgspec import structs

from noetl_contracts.identity import administration
from noetl_contracts.identity.administration import AdministrationRecord, NewRecord, RecordFilter
from noetl_contracts.identity.quotas import (
    RunningCount,
    StoredBytes,
    TenantQuota,
    TenantUsage,
)
from noetl_contracts.identity.role_bindings import (
    ALL_ORGANIZATIONS,
    LOCAL_ISSUER,
    ApiKey,
    PersonGroups,
    RoleBinding,
    Session,
    SubjectKind,
)
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.status import ExecutionStatus
from noetl_storage.memory.store import MemoryStore, Row
from noetl_storage.ports.errors import VersionConflict
from noetl_storage.ports.identity_ports import KeyRoles, SubjectNames

_LIVE = frozenset({ExecutionStatus.PENDING, ExecutionStatus.RUNNING, ExecutionStatus.PAUSED})


class MemoryIdentities:
    """Keeps who may do what."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def put_binding(self, binding: RoleBinding) -> RoleBinding:
        """Keep a binding; the same one again is the one that is there."""
        for stored in self._store.role_bindings.values():
            if _is_same_binding(stored, binding):
                return stored
        role_binding = structs.replace(binding, created_at=self._store.now())
        self._store.role_bindings[binding.binding_id] = role_binding
        return role_binding

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
        binding = self._store.role_bindings.get(binding_id)
        if binding is None or not _does_hold(binding, tenant_id, organization_id):
            return None
        if binding.organization_id == ALL_ORGANIZATIONS and not has_everywhere:
            return None
        return self._store.role_bindings.pop(binding_id)

    async def list_bindings(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, bindings_max: int
    ) -> list[RoleBinding]:
        """Return the bindings that hold in an organization, by subject."""
        bindings = [
            binding
            for binding in self._store.role_bindings.values()
            if _does_hold(binding, tenant_id, organization_id)
        ]
        bindings.sort(key=lambda b: (b.subject_kind, b.subject, b.role, b.path_prefix))
        return bindings[:bindings_max]

    async def find_bindings(self, names: SubjectNames) -> list[RoleBinding]:
        """Return the bindings of somebody, in every tenant."""
        return [
            binding
            for binding in self._store.role_bindings.values()
            if binding.issuer in ("", names.issuer) and _is_bound_to(binding, names)
        ]

    async def put_groups(self, groups: PersonGroups) -> None:
        """Keep the groups of somebody, unless later ones are kept."""
        key = (groups.issuer, groups.subject)
        stored = self._store.person_groups.get(key)
        if stored is None or stored.seen_at <= groups.seen_at:
            self._store.person_groups[key] = groups

    async def find_groups(self, *, issuer: str, subject: str) -> PersonGroups | None:
        """Return the groups that were seen last; None of who has not signed in."""
        return self._store.person_groups.get((issuer, subject))

    async def put_key(self, key: ApiKey) -> None:
        """Keep an API key; raises `VersionConflict` for a prefix that is taken."""
        if key.key_prefix in self._store.api_keys:
            raise VersionConflict(f"there is a key {key.key_prefix!r}")
        self._store.api_keys[key.key_prefix] = structs.replace(key, created_at=self._store.now())

    async def find_key(self, key_prefix: str) -> ApiKey | None:
        """Return an API key by its prefix, revoked or not."""
        return self._store.api_keys.get(key_prefix)

    async def find_key_roles(self, key_prefix: str) -> KeyRoles | None:
        """Return an API key by its prefix with the bindings of its account, in one request."""
        key = self._store.api_keys.get(key_prefix)
        if key is None:
            return None
        names = SubjectNames(kind=key.account_kind, subject=key.account, issuer=LOCAL_ISSUER)
        return KeyRoles(key=key, bindings=tuple(await self.find_bindings(names)))

    async def list_keys(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, keys_max: int
    ) -> list[ApiKey]:
        """Return the API keys of an organization, by account."""
        keys = [
            key
            for key in self._store.api_keys.values()
            if (key.tenant_id, key.organization_id) == (tenant_id, organization_id)
        ]
        return sorted(keys, key=lambda key: key.account)[:keys_max]

    async def revoke_key(
        self, key_prefix: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Make a key open nothing any more; False when there is none that does."""
        key = self._store.api_keys.get(key_prefix)
        owner = (tenant_id, organization_id)
        if key is None or key.revoked_at or (key.tenant_id, key.organization_id) != owner:
            return False
        self._store.api_keys[key_prefix] = structs.replace(key, revoked_at=self._store.now())
        return True

    async def note_key_use(self, key_prefix: str, used_at: datetime) -> None:
        """Keep when a key was used last."""
        key = self._store.api_keys.get(key_prefix)
        if key is not None and (key.used_at is None or key.used_at < used_at):
            self._store.api_keys[key_prefix] = structs.replace(key, used_at=used_at)

    async def has_any_key(self) -> bool:
        """Tell whether there is an API key that was not revoked."""
        now = self._store.now()
        return any(key.is_valid_at(now) for key in self._store.api_keys.values())

    async def has_tenant(self, tenant_id: TenantId) -> bool:
        """Tell whether anything is kept for a tenant: roles, playbooks, runs, a quota, records."""
        return tenant_id in self._list_tenants()

    async def find_other_tenant(self, tenant_id: TenantId) -> TenantId | None:
        """Return a tenant besides this one of which anything is kept; None where there is none."""
        return min(self._list_tenants() - {tenant_id}, default=None)

    def _list_tenants(self) -> set[TenantId]:
        executions = self._store.row_by_key_by_surface.get("execution", {}).values()
        return {
            *self._store.quotas,
            *(tenant for tenant, _ in self._store.administration),
            *(binding.tenant_id for binding in self._store.role_bindings.values()),
            *(entry.tenant_id for entry in self._store.catalog),
            *(row["tenant_id"] for row in executions),
        }

    async def has_organization(self, tenant_id: TenantId, organization_id: OrganizationId) -> bool:
        """Tell whether anything is kept for an organization: roles, playbooks, runs, records."""
        executions = self._store.row_by_key_by_surface.get("execution", {}).values()
        bindings = self._store.role_bindings.values()
        return (tenant_id, organization_id) in {
            *self._store.administration,
            *((binding.tenant_id, binding.organization_id) for binding in bindings),
            *((entry.tenant_id, entry.organization_id) for entry in self._store.catalog),
            *((row["tenant_id"], row["organization_id"]) for row in executions),
        }


class MemorySessions:
    """Keeps who is signed in with a browser."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def put_session(self, session: Session) -> None:
        """Keep a new session."""
        self._store.session_by_hash[session.session_hash] = session

    async def find_session(self, session_hash: str, *, now: datetime) -> Session | None:
        """Return a session that is neither revoked nor over, or None."""
        session = self._store.session_by_hash.get(session_hash)
        is_open = session is not None and session.revoked_at is None and session.expires_at > now
        return session if is_open else None

    async def revoke_session(self, session_hash: str, *, now: datetime) -> bool:
        """End a session; False when none was open."""
        session = self._store.session_by_hash.get(session_hash)
        if session is None or session.revoked_at is not None:
            return False
        self._store.session_by_hash[session_hash] = structs.replace(session, revoked_at=now)
        return True

    async def revoke_person_sessions(self, issuer: str, subject: str, *, now: datetime) -> int:
        """End every session of a person; return how many were open."""
        person_hashes = [
            session.session_hash
            for session in self._store.session_by_hash.values()
            if (session.issuer, session.subject) == (issuer, subject)
        ]
        revoked = [await self.revoke_session(digest, now=now) for digest in person_hashes]
        return sum(revoked)

    async def forget_sessions(self, *, before: datetime, sessions_max: int) -> int:
        """Remove sessions that were over before a time, the oldest first; return how many."""
        ended = sorted(
            (
                session
                for session in self._store.session_by_hash.values()
                if session.expires_at <= before
            ),
            key=lambda session: session.expires_at,
        )[:sessions_max]
        for session in ended:
            del self._store.session_by_hash[session.session_hash]
        return len(ended)


class MemoryAdministrationLog:
    """Keeps the streams of administration records."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    @asynccontextmanager
    async def open_change(self) -> AsyncIterator[None]:
        """Run what is stored within; memory undoes nothing."""
        yield

    async def hold_stream(self, *, tenant_id: TenantId, organization_id: OrganizationId) -> None:
        """Hold nothing: no change in memory waits, so that none comes between."""

    async def append_record(self, record: NewRecord) -> AdministrationRecord:
        """Seal a record behind the last of its stream."""
        stream = self._store.administration.setdefault(
            (record.tenant_id, record.organization_id), []
        )
        previous = stream[-1].checksum if stream else ""
        sealed = administration.seal_record(record, version=len(stream) + 1, previous=previous)
        stream.append(sealed)
        return sealed

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
        stream = self._store.administration.get((tenant_id, organization_id), [])
        accepted = [
            record for record in stream[after_version:] if record_filter.accepts_record(record)
        ]
        return accepted[:records_max]

    async def list_latest_records(
        self,
        record_filter: RecordFilter,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        records_max: int,
    ) -> list[AdministrationRecord]:
        """Return the latest records that a filter accepts, in order."""
        stream = self._store.administration.get((tenant_id, organization_id), [])
        return [record for record in stream if record_filter.accepts_record(record)][-records_max:]


def _is_same_binding(stored: RoleBinding, binding: RoleBinding) -> bool:
    unlike = {"binding_id": "", "created_by": "", "created_at": None}
    return structs.replace(stored, **unlike) == structs.replace(binding, **unlike)


def _does_hold(binding: RoleBinding, tenant_id: TenantId, organization_id: OrganizationId) -> bool:
    return binding.tenant_id == tenant_id and binding.organization_id in (
        organization_id,
        ALL_ORGANIZATIONS,
    )


def _is_bound_to(binding: RoleBinding, names: SubjectNames) -> bool:
    if binding.subject_kind == SubjectKind.GROUP:
        return binding.subject in names.groups
    return (binding.subject_kind, binding.subject) == (names.kind, names.subject)


class MemoryQuotas:
    """Keeps what tenants may use."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def put_quota(self, quota: TenantQuota) -> None:
        """Keep what a tenant may use; an empty quota takes the bounds away."""
        self._store.quotas.pop(quota.tenant_id, None)
        if not quota.is_empty:
            self._store.quotas[quota.tenant_id] = quota

    async def find_quota(self, tenant_id: TenantId) -> TenantQuota | None:
        """Return what a tenant may use; None where nothing bounds it."""
        return self._store.quotas.get(tenant_id)

    async def list_usage(
        self, *, tenant_id: TenantId | None, after: str, tenants_max: int
    ) -> list[TenantUsage]:
        """Return quotas with what runs, by tenant; of one tenant alone where it is named."""
        quotas = sorted(self._store.quotas.values(), key=lambda quota: quota.tenant_id)
        return [
            TenantUsage(
                quota=quota,
                running=self._count_live(quota.tenant_id),
                stored=self._store.stored_by_tenant.get(quota.tenant_id),
            )
            for quota in quotas
            if tenant_id in {None, quota.tenant_id} and quota.tenant_id > after
        ][:tenants_max]

    async def find_stored(self, tenant_id: TenantId) -> StoredBytes | None:
        """Return what a tenant was counted to store; None where nobody has counted it."""
        return self._store.stored_by_tenant.get(tenant_id)

    async def list_bounded_tenants(self) -> list[TenantId]:
        """Return the tenants whose quota bounds what they store, in order."""
        return sorted(
            quota.tenant_id
            for quota in self._store.quotas.values()
            if quota.stored_bytes_max is not None
        )

    async def put_stored(self, tenant_id: TenantId, stored: StoredBytes) -> None:
        """Keep what a tenant stores, instead of what was counted before."""
        self._store.stored_by_tenant[tenant_id] = stored

    async def count_running(
        self, tenant_id: TenantId, *, begun: Collection[ExecutionId], running_max: int
    ) -> RunningCount:
        """Count what has not ended, up to `running_max`; say which of `begun` are not shown yet."""
        shown = {row["execution_id"] for row in self._list_executions()}
        return RunningCount(
            running=min(self._count_live(tenant_id), running_max),
            unshown=frozenset(begun) - shown,
        )

    def _count_live(self, tenant_id: TenantId) -> int:
        return sum(
            row["tenant_id"] == tenant_id and row["status"] in _LIVE
            for row in self._list_executions()
        )

    def _list_executions(self) -> Collection[Row]:
        return self._store.row_by_key_by_surface.get("execution", {}).values()
