"""Flows: the correlation ids that executions go on under."""

from noetl_contracts.ids import ExecutionId
from noetl_planner.domain.keys import STARTED
from noetl_planner.http import finding
from noetl_planner.http.services import ApiServices
from noetl_replay.state import ExecutionState
from noetl_storage.errors import HistoryDropped


def flow_of(state: ExecutionState) -> str:
    """Return the flow of an execution; it is its own where its request named none."""
    return state.correlation_id or str(state.execution_id)


async def find_flow_of_parent(services: ApiServices, parent: str | None) -> str | None:
    """Return the flow of the execution that a request names as its parent, where there is one."""
    if parent is None:
        return None
    try:
        begun = await services.ledger.find_by_key(ExecutionId(finding.checked_id(parent)), STARTED)
    except HistoryDropped:
        return None
    owner = services.tenant_id, services.organization_id
    is_ours = begun is not None and (begun.tenant_id, begun.organization_id) == owner
    return begun.correlation_id if begun is not None and is_ours else None
