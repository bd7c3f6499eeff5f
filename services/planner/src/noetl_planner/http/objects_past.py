"""What a business object was at a version of one execution."""

import asyncio
from typing import Any

from noetl_contracts.events.business import BusinessObjectChanged
from noetl_contracts.ids import ExecutionId
from noetl_planner.http import replaying
from noetl_planner.http.services import ApiServices
from noetl_replay import fold_objects, rows
from noetl_replay.state import empty

PAGE_CHANGES = 1000


async def find_row(
    services: ApiServices, execution_id: ExecutionId, object_id: str, *, until: int
) -> dict[str, Any] | None:
    """Return an object's row at a version, or None where nothing had changed it yet.

    Its own changes say all of it, so that only they are read; where the beginning of the history
    has left the ledger, all of it is folded. Raises a 409 where it does not fold.
    """
    state, after = empty(execution_id, **services.place), 0
    while after < until:
        page = await services.objects.list_changes(
            execution_id,
            object_id,
            after_version=after,
            until_version=until,
            changes_max=PAGE_CHANGES,
        )
        if page is None:
            replay = await replaying.replay(services, execution_id, until=until, has_rows=True)
            return replay.surfaces["business_object"].get(object_id)
        for one in page:
            assert isinstance(one.event, BusinessObjectChanged), "its events are of one type"
            fold_objects.apply(state, one, one.event)
        if len(page) < PAGE_CHANGES:
            break
        after = page[-1].stream_version
        # Other requests have their turn between two pages.
        await asyncio.sleep(0)
    thing = state.objects.get(object_id)
    return None if thing is None else rows.object_row(state, thing)
