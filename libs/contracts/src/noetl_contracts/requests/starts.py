"""Requests of services that start an execution: of a schedule, of a notification."""

from noetl_contracts import codec
from noetl_contracts.identity.actors import Actor
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.ledger.records import Request
from noetl_contracts.requests.facts import ExecutionRequested, FactBatch

KIND = "execute"


def build_start_request(
    fact: ExecutionRequested,
    *,
    owner: tuple[TenantId, OrganizationId],
    actor: Actor,
    execution_id: ExecutionId,
    routes: IngestRoutes,
    producer: str,
    key: str,
) -> Request:
    """Ask for an execution; asked for again under the same `key` it is the same one."""
    tenant_id, organization_id = owner
    request_id = f"execute-{execution_id}"
    batch = FactBatch(
        key=request_id,
        execution_id=execution_id,
        tenant_id=tenant_id,
        organization_id=organization_id,
        producer=producer,
        facts=[fact],
        request_id=request_id,
        actor=actor,
    )
    return Request(
        request_id=request_id,
        execution_id=execution_id,
        tenant_id=tenant_id,
        organization_id=organization_id,
        kind=KIND,
        subject=routes.build_subject(execution_id, tenant_id, organization_id),
        data=codec.encode_json(batch),
        idempotency_key=key,
    )
