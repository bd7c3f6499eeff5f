"""What a planner keeps in memory of executions: what goes on, and little of what has ended."""

from datetime import UTC, datetime

from noetl_chassis.clock import SystemClock
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.envelope import Envelope
from noetl_contracts.requests.facts import FactBatch
from noetl_planner.shards.caches import StateCache
from noetl_replay.state import ExecutionState, build_empty_state
from noetl_storage.memory.registry import MemorySnapshots
from noetl_storage.memory.store import MemoryStore

TENANT, ORGANIZATION = TenantId("t"), OrganizationId("o")


class EmptyLedger:
    """Counts how often a history is read; all of them are empty."""

    def __init__(self) -> None:
        self.reads = 0

    async def read_events(
        self, execution_id: ExecutionId, *, after_version: int = 0, events_max: int
    ) -> list[Envelope]:
        self.reads += 1
        return []


def no_snapshots() -> MemorySnapshots:
    return MemorySnapshots(MemoryStore(clock=SystemClock()))


def about(execution: int) -> FactBatch:
    return FactBatch(
        key="k",
        execution_id=ExecutionId(str(execution)),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        producer="test",
        facts=[],
    )


def a_state(execution: int, *, has_ended: bool) -> ExecutionState:
    state = build_empty_state(ExecutionId(str(execution)), TENANT, ORGANIZATION)
    state.ended_at = datetime(2026, 1, 1, tzinfo=UTC) if has_ended else None
    return state


async def reads_of(states: StateCache, ledger: EmptyLedger, executions: range) -> int:
    before = ledger.reads
    for execution in executions:
        states.put_state_back(await states.take_state(about(execution)))
    return ledger.reads - before


async def test_what_goes_on_is_kept_while_others_end() -> None:
    ledger = EmptyLedger()
    states = StateCache(ledger=ledger, snapshots=no_snapshots(), states_max=100)
    for execution in range(100):
        states.put_state_back(a_state(execution, has_ended=False))
    for execution in range(1000, 3000):
        states.put_state_back(a_state(execution, has_ended=True))
    assert await reads_of(states, ledger, range(100)) == 0


async def test_of_what_has_ended_the_latest_are_kept_and_the_rest_read_again() -> None:
    ledger = EmptyLedger()
    states = StateCache(ledger=ledger, snapshots=no_snapshots(), states_max=1000)
    for execution in range(500):
        states.put_state_back(a_state(execution, has_ended=True))
    assert await reads_of(states, ledger, range(499, 489, -1)) == 0
    assert await reads_of(states, ledger, range(10)) == 10


async def test_a_state_is_taken_out_and_forgotten() -> None:
    ledger = EmptyLedger()
    states = StateCache(ledger=ledger, snapshots=no_snapshots(), states_max=10)
    for has_ended in (True, False):
        states.put_state_back(a_state(1, has_ended=has_ended))
        await states.take_state(about(1))
        await states.take_state(about(1))
        assert ledger.reads == 1
        ledger.reads = 0
        states.put_state_back(a_state(1, has_ended=has_ended))
        states.drop_state(ExecutionId("1"))
        await states.take_state(about(1))
        assert ledger.reads == 1
        ledger.reads = 0


async def test_a_state_that_has_been_overtaken_is_not_put_back() -> None:
    ledger = EmptyLedger()
    for has_ended in (True, False):
        states = StateCache(ledger=ledger, snapshots=no_snapshots(), states_max=10)
        later = a_state(1, has_ended=has_ended)
        later.version = 2
        earlier = a_state(1, has_ended=False)
        earlier.version = 1
        assert states.put_state_back(later)
        assert not states.put_state_back(earlier)
        assert await states.take_state(about(1)) is later
        assert states.put_state_back(earlier)
        assert states.put_state_back(later)
        assert await states.take_state(about(1)) is later
