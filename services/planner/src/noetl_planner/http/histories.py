"""An execution's state as its history tells it, for whoever asks about its steps."""

from noetl_contracts.ids import ExecutionId
from noetl_planner.http.services import ApiServices
from noetl_replay import snapshot
from noetl_replay.fold import fold
from noetl_replay.state import ExecutionState, empty, take_changes

PAGE_EVENTS = 1000


async def folded(services: ApiServices, execution_id: ExecutionId) -> ExecutionState:
    """Fold all that has happened, from the latest snapshot on."""
    remembered = snapshot.restore(await services.snapshots.find(execution_id))
    state = remembered or empty(execution_id, **services.place)
    while True:
        page = await services.ledger.read(
            execution_id, after_version=state.version, events_max=PAGE_EVENTS
        )
        state = fold(state, page)
        take_changes(state)
        if len(page) < PAGE_EVENTS:
            return state
