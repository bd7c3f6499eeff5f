"""Where a unit of work stands."""

from msgspec import Struct

from noetl_contracts.ids import ExecutionId, FrameId, OrganizationId, TenantId


class Site(Struct, frozen=True, kw_only=True):
    """Where a unit of work stands: one step run, item or row."""

    execution_id: ExecutionId
    tenant_id: TenantId
    organization_id: OrganizationId
    step: str
    unit: str
    row_index: int | None = None
    frame_id: FrameId | None = None
