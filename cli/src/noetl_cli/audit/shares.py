"""What there is to audit, and how it is cut into shares for those who audit at the same time."""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.archive_format import ArchiveManifest
from noetl_contracts.ledger.records import HistoryHead

# A share is the least that is lost when its process dies, and the step of the progress shown.
SHARES_PER_PROCESS = 8


class ExecutionAudit(Struct, frozen=True, kw_only=True):
    """An execution to audit: where the ledger ends it, if it does, and who archived a part of it.

    `manifests` are those of the archive that hold some of it, in the order of its versions.
    """

    execution_id: ExecutionId
    head: HistoryHead | None = None
    manifests: tuple[str, ...] = ()
    archived: HistoryHead | None = None

    @property
    def event_count(self) -> int:
        """Return how many events it is expected to have."""
        head = self.head or self.archived
        return 0 if head is None else head.version


class AuditShare(Struct, frozen=True, kw_only=True):
    """Executions of one owner that one process audits after each other."""

    tenant_id: TenantId
    organization_id: OrganizationId
    audits: list[ExecutionAudit]
    reads_live: bool = True


def plan_audits(
    heads: Iterable[HistoryHead], manifests: Iterable[ArchiveManifest]
) -> list[ExecutionAudit]:
    """Name every execution that the ledger or the archive knows, by its identity."""
    execution_audits = {
        head.execution_id: ExecutionAudit(execution_id=head.execution_id, head=head)
        for head in heads
    }
    units = sorted(
        (
            (item.first_version, manifest.unit.manifest_id, item)
            for manifest in manifests
            for item in manifest.histories
        ),
        key=lambda entry: entry[:2],
    )
    for _, manifest_id, history in units:
        before = execution_audits.get(history.execution_id) or ExecutionAudit(
            execution_id=history.execution_id
        )
        execution_audits[history.execution_id] = ExecutionAudit(
            execution_id=history.execution_id,
            head=before.head,
            manifests=(*before.manifests, manifest_id),
            archived=HistoryHead(
                execution_id=history.execution_id,
                version=history.last_version,
                checksum=history.checksum,
            ),
        )
    return [execution_audits[key] for key in sorted(execution_audits, key=int)]


def split_shares(
    audits: Sequence[ExecutionAudit], whole: AuditShare, *, processes: int
) -> list[AuditShare]:
    """Cut audits into shares of about as many events each, neighbours together."""
    total = sum(audit.event_count + 1 for audit in audits)
    room = max(1, -(-total // (processes * SHARES_PER_PROCESS)))
    shares: list[list[ExecutionAudit]] = []
    share_events = room
    for audit in audits:
        if share_events >= room:
            shares.append([])
            share_events = 0
        shares[-1].append(audit)
        share_events += audit.event_count + 1
    return [
        AuditShare(
            tenant_id=whole.tenant_id,
            organization_id=whole.organization_id,
            audits=chosen,
            reads_live=whole.reads_live,
        )
        for chosen in shares
    ]
