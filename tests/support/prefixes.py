"""A history stopped at places chosen by lot: a projector holds there what a replay gives."""

import random
from collections.abc import Sequence

from tests.support.bus import memory_bus
from tests.support.projecting import ProjectorHarness
from tests.support.storage import memory_stores
from tests.support.surface_comparison import RowDifference, compare_surfaces

from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.ledger.records import StreamAppend
from noetl_replay import rows
from noetl_replay.comparison import Surfaces, index_live_surfaces, replay_surfaces
from noetl_replay.state import build_empty_state

PLACES = 50
# After so many places another projector goes on, from what is stored.
RESTARTS_EVERY = 7


def places_of(history: Sequence[Envelope]) -> list[int]:
    """Choose versions by a lot that the execution's id decides; the last is always among them."""
    lot = random.Random(int(history[0].execution_id))
    last = len(history)
    return sorted({*lot.sample(range(1, last + 1), min(PLACES, last)), last})


async def list_prefix_differences(history: Sequence[Envelope]) -> list[tuple[int, RowDifference]]:
    """Project prefixes with the projector's own code and compare each with its replay."""
    first = history[0]
    execution_id = first.execution_id
    replayed: Surfaces = {surface: {} for surface in rows.SURFACES}
    state = build_empty_state(execution_id, first.tenant_id, first.organization_id)
    found = []
    async with memory_bus() as bus:
        harness = ProjectorHarness(memory_stores(), bus)
        before = 0
        for turn, place in enumerate(places_of(history)):
            if turn % RESTARTS_EVERY == 0:
                projector = harness.projector(gap_page_events=5)
            part = history[before:place]
            await harness.append_stream(
                StreamAppend(
                    execution_id=execution_id,
                    tenant_id=first.tenant_id,
                    organization_id=first.organization_id,
                    expected_version=before,
                    envelopes=list(part),
                )
            )
            while await projector.catch_up():
                pass
            state, changed = replay_surfaces(state, part)
            for surface, latest in changed.items():
                replayed[surface].update(latest)
            differences = compare_surfaces(await _live(harness, execution_id), replayed)
            found += [(place, difference) for difference in differences]
            before = place
    return found


async def _live(harness: ProjectorHarness, execution_id: ExecutionId) -> Surfaces:
    projections = harness.stores.projections
    return index_live_surfaces(
        {surface: await projections.list_rows(surface, execution_id) for surface in rows.SURFACES}
    )
