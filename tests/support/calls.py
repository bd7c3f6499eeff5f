"""One call of a tool, as a test writes it."""

from itertools import count
from typing import Any

from tests.support.working import EXECUTION, ORGANIZATION, TENANT

from noetl_contracts.ids import OrganizationId, TenantId
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.tools.calls.call import Call, Timeout

# Each call is a task of its own: one that has run already is not run again.
VISITS = count(1)


def site(*, tenant: TenantId = TENANT, organization: OrganizationId = ORGANIZATION) -> UnitScope:
    """Where a test's tasks stand."""
    return UnitScope(
        execution_id=EXECUTION,
        tenant_id=tenant,
        organization_id=organization,
        step="s",
        unit="step",
    )


def call_of(
    kind: str,
    fields: dict[str, Any],
    *,
    auth: Any = None,
    timeout_s: float = 20,
    tenant: TenantId = TENANT,
    **given: Any,
) -> Call:
    """A call with rendered fields; `given` is its input."""
    return Call(
        site=site(tenant=tenant),
        task="t",
        kind=kind,
        attempt=1,
        visit=next(VISITS),
        fields=fields,
        input=given,
        auth=auth,
        timeout=Timeout(total=timeout_s),
    )
