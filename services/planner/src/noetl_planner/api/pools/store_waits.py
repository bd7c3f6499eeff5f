"""Tells who holds an execution back because the payload store is away or refuses writes."""

from msgspec import Struct

from noetl_contracts.ids import ExecutionId
from noetl_planner.api.http.service_groups import ShardServices

PLANNER = "planner"


class StoreWaitView(Struct, frozen=True, kw_only=True):
    """Who waits for the payload store, the planner or a worker by name, and why."""

    who: str
    reason: str


def list_store_waits(shards: ShardServices, execution_id: ExecutionId) -> list[StoreWaitView]:
    """Return the waits of an execution for the payload store that were heard of lately."""
    store_wait_views = [
        StoreWaitView(who=beat.worker_id, reason="the store does not answer, or takes no writes")
        for beat in shards.worker_presence.list_beats()
        if execution_id in beat.store_waiting
    ]
    reason = shards.store_waits.find_reason(execution_id)
    return (
        store_wait_views
        if reason is None
        else [StoreWaitView(who=PLANNER, reason=reason), *store_wait_views]
    )
