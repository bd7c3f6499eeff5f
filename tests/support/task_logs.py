"""The chunks that a worker has stored, read as whoever looks at a log does."""

from noetl_contracts import codec
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.log_chunks import LogChunk, LogLine, build_chunk_prefix
from noetl_storage.ports.ledger_ports import Payloads


async def chunks_of(
    payloads: Payloads,
    execution_id: ExecutionId,
    *,
    tenant_id: TenantId,
    organization_id: OrganizationId,
) -> list[LogChunk]:
    """All chunks of an execution, in the order of their names."""
    names = await payloads.list_names(
        build_chunk_prefix(execution_id), tenant_id=tenant_id, organization_id=organization_id
    )
    log_chunks = []
    for name in names:
        data = await payloads.find_named(name, tenant_id=tenant_id, organization_id=organization_id)
        assert data is not None
        log_chunks.append(codec.decode_as(data, LogChunk))
    return log_chunks


def lines_of(chunks: list[LogChunk]) -> list[LogLine]:
    """All lines of chunks, in order."""
    return [line for chunk in chunks for line in chunk.lines]
