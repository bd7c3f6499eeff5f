"""Quotas: how much of an installation one tenant may use."""

from datetime import datetime

from msgspec import Struct

from noetl_contracts.ids import ExecutionId, TenantId


class TenantQuota(Struct, frozen=True, kw_only=True):
    """What a tenant may use at most; None: as much as there is.

    `running_max` counts executions that have begun and not ended, `calls_per_s` calls of the API,
    `stored_bytes_max` what all payloads and named objects take in the payload store. Of a tenant
    that `is_suspended` nothing begins but what its running executions cause.
    """

    tenant_id: TenantId
    running_max: int | None = None
    calls_per_s: float | None = None
    stored_bytes_max: int | None = None
    is_suspended: bool = False

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is limited."""
        return self == TenantQuota(tenant_id=self.tenant_id)


class StoredBytes(Struct, frozen=True, kw_only=True):
    """What a tenant has in the payload store, and when that was counted."""

    stored_bytes: int
    counted_at: datetime


class TenantUsage(Struct, frozen=True, kw_only=True):
    """A quota, how many executions of its tenant have not ended, and what it stores.

    `stored` is None where nobody has counted it yet.
    """

    quota: TenantQuota
    running: int
    stored: StoredBytes | None = None


class RunningCount(Struct, frozen=True, kw_only=True):
    """How many executions have not ended, and which of those asked about no table shows yet."""

    running: int
    unshown: frozenset[ExecutionId]
