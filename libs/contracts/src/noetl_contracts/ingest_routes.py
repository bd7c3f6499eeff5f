"""Where facts about an execution are published: its shard, and the queue of its tenant there."""

from msgspec import Struct

from noetl_contracts import ids, subjects
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.subjects import Reporter


class IngestRoutes(Struct, frozen=True, kw_only=True):
    """How many shards there are, and which `tenants` have a queue of their own in each.

    All processes must be given the same.
    """

    shard_count: int
    tenants: frozenset[str] = frozenset()

    def find_share(self, tenant_id: TenantId) -> TenantId | None:
        """Return the tenant if it has a queue of its own, None where it shares that of others."""
        return tenant_id if tenant_id in self.tenants else None

    def build_subject(
        self,
        execution_id: ExecutionId,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        reporter: Reporter | None = None,
    ) -> str:
        """Address facts to the planner of an execution; a worker names itself as the `reporter`."""
        shard, is_own = ids.find_shard(execution_id, self.shard_count), tenant_id in self.tenants
        if reporter is None:
            return subjects.build_ingest_subject(shard, tenant_id, organization_id, is_own=is_own)
        return subjects.build_report_subject(
            shard, tenant_id, organization_id, reporter, is_own=is_own
        )
