"""Every service in one process over a broker that loses, delays, reorders and repeats by seed."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.polling import eventually
from tests.support.surface_comparison import compare_surfaces

from noetl_chassis.clock import Clock
from noetl_cli.local import system
from noetl_cli.local.system import LocalSystem
from noetl_contracts.events import get_event_type
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ledger.envelope import Envelope
from noetl_messaging.memory.broker import MemoryBroker, StoredMessage
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Message
from noetl_messaging.streams.topology import Topology
from noetl_planner.api.catalog import playbooks
from noetl_planner.api.executions import start_requests
from noetl_planner.api.executions.start_requests import ExecuteBody
from noetl_playbook.source.problems import Level
from noetl_replay import rows
from noetl_replay.comparison import index_live_surfaces, replay_surfaces
from noetl_replay.state import ExecutionState, build_empty_state

pytestmark = pytest.mark.timeout(120)

RUNS = 5
PATIENCE_S = 60.0
SETTLE_WAIT_S = 0.3
PAGE_EVENTS = 1000
SETTINGS = {
    "NOETL_WORKER_LEASE_S": "0.6",
    "NOETL_PLANNER_COMMAND_LEASE_S": "0.6",
    "NOETL_PLANNER_COMMAND_HEARTBEAT_S": "0.1",
    "NOETL_PLANNER_STEP_ATTEMPTS_MAX": "100",
}
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: shaken, path: simulation/shaken}
workload: {numbers: [1, 2, 3, 4, 5, 6, 7, 8]}
workflow:
  - step: split
    tool: {kind: noop}
    next: {spec: {mode: inclusive}, arcs: [{step: each}, {step: fails}]}
  - step: each
    loop: {in: "{{ workload.numbers }}", iterator: n,
           spec: {mode: parallel, max_in_flight: 3, max_attempts: 100}}
    tool: {kind: noop, result: "{{ iter.n * iter.n }}"}
    set: {ctx.squares: "{{ each.results }}"}
    next: {arcs: [{step: merge}]}
  - step: fails
    tool:
      kind: noop
      spec: {policy: {rules: [{else: {then: {do: fail, message: as planned}}}]}}
    next: {arcs: [{step: merge, when: "{{ event.name == 'call.error' }}", set: {ctx.failed: true}}]}
  - step: merge
    tool: {kind: noop}
    set: {ctx.total: "{{ ctx.squares | sum }}"}
"""
CTX = {"squares": [1, 4, 9, 16, 25, 36, 49, 64], "failed": True, "total": 204}
ENDS = {"playbook.completed", "playbook.failed"}
# What must happen exactly so often, whatever becomes of the messages.
EFFECTS: dict[tuple[str, str | None], int] = {
    ("playbook.initialized", None): 1,
    **{("step.enter", step): 1 for step in ("split", "each", "fails", "merge")},
    **{("call.done", step): 1 for step in ("split", "merge")},
    ("call.done", "each"): 8,
    ("call.error", "fails"): 1,
    ("loop.done", "each"): 1,
    ("playbook.completed", "merge"): 1,
}


class ShakyBroker(MemoryBroker):
    """A broker whose publications come late or twice, and whose deliveries get lost."""

    def __init__(self, declared: Topology, clock: Clock, *, chance: random.Random) -> None:
        consumers = tuple(
            spec
            if spec.stream == topology.COMMANDS
            else structs.replace(spec, ack_wait_s=SETTLE_WAIT_S)
            for spec in declared.consumers
        )
        super().__init__(structs.replace(declared, consumers=consumers), clock)
        self._chance = chance
        self._late: list[Message] = []
        self.shaken = Counter[str]()

    def _happens(self, what: str, share: float) -> bool:
        has_happened = self._chance.random() < share
        self.shaken[what] += has_happened
        return has_happened

    def store_message(self, message: Message, headers: dict[str, str] | None = None) -> None:
        if self._happens("repeated", 0.2):
            name = f"{message.message_id}/{self._chance.random()}"
            self._late.append(structs.replace(message, message_id=name))
        if self._happens("delayed", 0.2):
            self._late.append(message)
        else:
            super().store_message(message, headers)

    def take_due(
        self, stream: str, name: str, messages_max: int
    ) -> list[tuple[StoredMessage, int]]:
        self._chance.shuffle(self._late)
        while self._late and self._chance.random() < 0.5:
            super().store_message(self._late.pop())
        taken = super().take_due(stream, name, messages_max)
        return [item for item in taken if not self._happens("lost", 0.15)]


def shaken(monkeypatch: pytest.MonkeyPatch, seed: int) -> list[ShakyBroker]:
    """Let every system from now on have a broker that shakes; return those that were made."""
    brokers: list[ShakyBroker] = []

    def broker(declared: Topology, clock: Clock) -> ShakyBroker:
        brokers.append(ShakyBroker(declared, clock, chance=random.Random(seed)))
        return brokers[-1]

    monkeypatch.setattr(system, "MemoryBroker", broker)
    return brokers


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[LocalSystem]:
    configs = system.load_settings(SETTINGS, folder)
    async with system.open_system(configs) as opened, asyncio.TaskGroup() as tasks:
        tasks.create_task(system.run_services(opened))
        try:
            yield opened
        finally:
            opened.process.stop.set()


async def started(opened: LocalSystem) -> list[ExecutionId]:
    await playbooks.register_text(opened.services, PLAYBOOK, level=Level.TOLERANT)
    body = ExecuteBody(path="simulation/shaken")
    return [
        (await start_requests.execute_playbook(opened.services, body, None)).execution_id
        for _ in range(RUNS)
    ]


async def history(opened: LocalSystem, execution_id: ExecutionId) -> list[Envelope]:
    return await opened.adapters.ledger.read_events(
        execution_id, after_version=0, events_max=PAGE_EVENTS
    )


async def ended(opened: LocalSystem, execution_id: ExecutionId) -> list[Envelope]:
    """The whole history, once it has its end and the projection shows all of it."""

    async def is_projected() -> list[Envelope] | None:
        events = await history(opened, execution_id)
        positions = await opened.adapters.projections.list_positions([execution_id])
        is_over = any(get_event_type(event.event) in ENDS for event in events)
        is_shown = positions.get(execution_id) == len(events)
        return events if is_over and is_shown else None

    envelopes = await eventually(is_projected, timeout_s=PATIENCE_S)
    assert envelopes is not None
    return envelopes


def effects(events: list[Envelope]) -> dict[tuple[str, str | None], int]:
    counted = Counter(
        (get_event_type(event.event), getattr(event.event, "step", None)) for event in events
    )
    return {effect: counted[effect] for effect in EFFECTS}


async def assert_projected(opened: LocalSystem, events: list[Envelope]) -> ExecutionState:
    first = events[0]
    state, replayed = replay_surfaces(
        build_empty_state(first.execution_id, first.tenant_id, first.organization_id), events
    )
    live: dict[str, Any] = {
        surface: await opened.adapters.projections.list_rows(surface, first.execution_id)
        for surface in rows.SURFACES
    }
    assert compare_surfaces(index_live_surfaces(live), replayed) == []
    return state


@pytest.mark.parametrize("seed", range(4))
async def test_shaken_messages_end_in_the_same_state_with_each_effect_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    brokers = shaken(monkeypatch, seed)
    async with running(tmp_path) as opened:
        for execution_id in await started(opened):
            events = await ended(opened, execution_id)
            assert effects(events) == EFFECTS
            state = await assert_projected(opened, events)
            assert state.ctx == CTX
    assert min(brokers[0].shaken[what] for what in ("repeated", "delayed", "lost")) > RUNS
