"""All five services in the test's own process, and one playbook run on them to its end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.asking import ENDS
from tests.support.polling import eventually
from tests.support.surface_comparison import compare_surfaces

from noetl_cli.local import system
from noetl_cli.local.system import LocalSystem
from noetl_contracts import codec
from noetl_contracts.events import get_event_type
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_planner.api.catalog import playbooks
from noetl_planner.api.executions import start_requests
from noetl_planner.api.executions.start_requests import ExecuteBody
from noetl_playbook.source.problems import Level
from noetl_replay import rows
from noetl_replay.comparison import Surfaces, index_live_surfaces, replay_surfaces
from noetl_replay.fold import fold_history
from noetl_replay.state import ExecutionState, build_empty_state

PATIENCE_S = 120.0
PAGE_EVENTS = 1000
HEAD = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t, path: tests/t}
"""


class ExecutionRecord:
    """What became of an execution: its history, and what that folds to."""

    def __init__(self, events: list[Envelope], state: ExecutionState) -> None:
        self.events = events
        self.state = state

    @property
    def types(self) -> list[str]:
        """Every event type in order."""
        return [get_event_type(event.event) for event in self.events]

    def of(self, kind: str) -> list[Any]:
        """The events of one type."""
        return [event.event for event in self.events if get_event_type(event.event) == kind]


@asynccontextmanager
async def a_system(folder: Path, **settings: str) -> AsyncIterator[LocalSystem]:
    """Run every service until the test is done."""
    environ = {"NOETL_AUTH": "off-on-loopback", **settings}
    configs = system.load_settings(environ, folder)
    async with system.open_system(configs) as opened, asyncio.TaskGroup() as tasks:
        tasks.create_task(system.run_services(opened))
        try:
            yield opened
        finally:
            opened.process.stop.set()


async def begin(opened: LocalSystem, playbook: str, **workload: Any) -> ExecutionId:
    """Register a playbook, its head left out, and ask for a run of it."""
    await playbooks.register_text(opened.services, HEAD + playbook, level=Level.TOLERANT)
    body = ExecuteBody(path="tests/t", workload=workload)
    return (await start_requests.execute_playbook(opened.services, body, None)).execution_id


async def history(opened: LocalSystem, execution_id: ExecutionId) -> list[Envelope]:
    """Read a whole history, page by page."""
    events: list[Envelope] = []
    while page := await opened.adapters.ledger.read_events(
        execution_id, after_version=len(events), events_max=PAGE_EVENTS
    ):
        events += page
    return events


async def settled(opened: LocalSystem, execution_id: ExecutionId) -> list[Envelope]:
    """Wait until the projection has caught up with a history, and hold it against the replay."""

    async def is_projected() -> list[Envelope] | None:
        head = await opened.adapters.ledger.find_head(execution_id)
        positions = await opened.adapters.projections.list_positions([execution_id])
        is_shown = head is not None and positions.get(execution_id) == head.version
        return await history(opened, execution_id) if is_shown else None

    while True:
        events = await eventually(is_projected, timeout_s=PATIENCE_S)
        assert events is not None
        live = await shown(opened, execution_id)
        # A late event may have come meanwhile: then the two are not of one moment.
        if len(events) == len(await history(opened, execution_id)):
            assert compare_surfaces(live, replay_surfaces(begin_of(events), events)[1]) == []
            return events


async def assert_replayed(opened: LocalSystem, events: list[Envelope]) -> ExecutionState:
    """Hold the projection against the replay of a whole history; return the state."""
    state, replayed = replay_surfaces(begin_of(events), events)
    assert compare_surfaces(await shown(opened, events[0].execution_id), replayed) == []
    return state


async def shown(opened: LocalSystem, execution_id: ExecutionId) -> Surfaces:
    """Every surface of an execution as it is stored."""
    projections = opened.adapters.projections
    return index_live_surfaces(
        {surface: await projections.list_rows(surface, execution_id) for surface in rows.SURFACES}
    )


def begin_of(events: list[Envelope]) -> ExecutionState:
    """The empty state that a history folds into."""
    first = events[0]
    return build_empty_state(first.execution_id, first.tenant_id, first.organization_id)


async def ended(opened: LocalSystem, execution_id: ExecutionId) -> ExecutionRecord:
    """Wait for the end, and hold the projection against the replay."""

    async def is_projected() -> list[Envelope] | None:
        head = await opened.adapters.ledger.find_head(execution_id)
        if head is None:
            return None
        last = await opened.adapters.ledger.read_events(
            execution_id, after_version=head.version - 1
        )
        positions = await opened.adapters.projections.list_positions([execution_id])
        is_over = get_event_type(last[-1].event) in ENDS
        is_shown = positions.get(execution_id) == head.version
        return await history(opened, execution_id) if is_over and is_shown else None

    events = await eventually(is_projected, timeout_s=PATIENCE_S)
    assert events is not None
    return ExecutionRecord(events, await assert_replayed(opened, events))


async def run(opened: LocalSystem, playbook: str, **workload: Any) -> ExecutionRecord:
    """Run a playbook to its end."""
    return await ended(opened, await begin(opened, playbook, **workload))


def folded(events: list[Envelope]) -> ExecutionState:
    """Fold a history from its beginning."""
    first = events[0]
    return fold_history(
        build_empty_state(first.execution_id, first.tenant_id, first.organization_id), events
    )


async def value(opened: LocalSystem, execution_record: ExecutionRecord, step: str) -> Any:
    """The kept form of a step's result, loaded if it is kept by reference."""
    result = execution_record.state.steps[step].result
    assert result is not None
    if result.reference is None:
        return result.context["data"]
    return codec.decode_json(await opened.adapters.payloads.read_payload(result.reference))
