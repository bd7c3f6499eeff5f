"""Quotas: how much of an installation one tenant may use."""

from msgspec import Struct

from noetl_contracts.ids import ExecutionId, TenantId


class TenantQuota(Struct, frozen=True, kw_only=True):
    """What a tenant may use at most; None: as much as there is.

    `running_max` counts executions that have begun and not ended, `calls_per_s` calls of the API.
    """

    tenant_id: TenantId
    running_max: int | None = None
    calls_per_s: float | None = None

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing is limited."""
        return self.running_max is None and self.calls_per_s is None


class TenantUsage(Struct, frozen=True, kw_only=True):
    """A quota, and how many executions of its tenant have not ended."""

    quota: TenantQuota
    running: int


class RunningCount(Struct, frozen=True, kw_only=True):
    """How many executions have not ended, and which of those asked about no table shows yet."""

    running: int
    unshown: frozenset[ExecutionId]
