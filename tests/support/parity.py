"""Live projections against the fold of the ledger: equal row by row, or named differences."""

import asyncio

from tests.support.prefixes import list_prefix_differences
from tests.support.stack import Stack
from tests.support.surface_comparison import RowDifference, compare_surfaces

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import HistoryHead
from noetl_replay import rows
from noetl_replay.comparison import index_live_surfaces, replay_surfaces
from noetl_replay.state import build_empty_state
from noetl_storage.postgres.database import open_database
from noetl_storage.postgres.ledger.ledger import PostgresLedger
from noetl_storage.postgres.read_models.projections import PostgresProjections

PATIENCE_S = 60.0
PAGE_EVENTS = 1000


def assert_parity(stack: Stack, execution_id: str) -> None:
    """Wait until the projection has caught up, then compare every surface.

    Then at places of the history that are chosen by lot: a projector that stopped there would hold
    what a replay up to there gives.
    """
    found, history = asyncio.run(_compare(stack.url("postgres"), ExecutionId(execution_id)))
    assert not found, found[:5]
    on_the_way = asyncio.run(list_prefix_differences(history))
    assert not on_the_way, on_the_way[:5]


async def _compare(
    dsn: str, execution_id: ExecutionId
) -> tuple[list[RowDifference], list[Envelope]]:
    async with open_database(dsn, connections_max=2, must_be_durable=False) as database:
        ledger, projections = PostgresLedger(database), PostgresProjections(database)
        head = await ledger.find_head(execution_id)
        assert head is not None
        await _caught_up(projections, head)
        history: list[Envelope] = []
        while len(history) < head.version:
            history += await ledger.read_events(
                execution_id, after_version=len(history), events_max=PAGE_EVENTS
            )
        first = history[0]
        state = build_empty_state(execution_id, first.tenant_id, first.organization_id)
        _, replayed = replay_surfaces(state, history)
        live = index_live_surfaces(
            {
                surface: await projections.list_rows(surface, execution_id)
                for surface in rows.SURFACES
            }
        )
        return compare_surfaces(live, replayed), history


async def _caught_up(projections: PostgresProjections, head: HistoryHead) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while True:
            positions = await projections.list_positions([head.execution_id])
            if positions.get(head.execution_id) == head.version:
                return
            await asyncio.sleep(0.1)
