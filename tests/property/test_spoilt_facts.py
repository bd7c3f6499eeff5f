"""Messages that nobody should have sent, in one fetch with good ones: the planner's turn stands.

Each is refused with a reason among the dead letters, or decided; no turn ends in an error, no
history holds what was not sound, and whoever shares the fetch goes on.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from structlog.testing import capture_logs
from tests.support import informers
from tests.support.invariants import assert_chained
from tests.support.spoiling import spoilt_by, twisted_by

from noetl_chassis.clock import ManualClock, SystemClock
from noetl_cli.local import system
from noetl_contracts import codec, facts, ids, subjects
from noetl_contracts.envelope import Envelope
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.events import event_type
from noetl_contracts.facts import Fact, FactBatch
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import ShardFence
from noetl_messaging import topology
from noetl_messaging.memory.broker import MemoryBroker, Stored
from noetl_messaging.memory.consumer import MemoryConsumer, MemoryDelivery
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.ports import MESSAGE_BYTES_MAX, DeadLetter, Message
from noetl_planner import assembly as planning
from noetl_planner.http import playbooks
from noetl_planner.service import ShardPlanner
from noetl_planner.shell import admitting
from noetl_playbook.problems import Level
from noetl_replay import rows
from noetl_replay.fold import fold
from noetl_replay.state import ExecutionState, empty, take_changes

EXAMPLES_SHARE = 4
PLANNERS_OWN = {f"MalformedMessage: {name}" for name in ("ItemsCollected", "PartsCollected")}
TURNS_MAX = 60
NUMBER_MAX = 2**63 - 1
TENANT, ORGANIZATION = TenantId("default"), OrganizationId("default")
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: %s, path: %s}\nworkflow:\n"
VICTIMS = {
    "step": "  - {step: s, tool: {kind: python, code: 'return 1'}, next: {arcs: [{step: u}]}}\n"
    "  - {step: u, tool: {kind: noop}}\n",
    "items": "  - {step: s, loop: {in: [1, 2, 3], iterator: i, spec: {mode: parallel}},"
    " tool: {kind: noop}}\n",
    "frames": "  - {step: s, loop: {in: '{{ range(9) | list }}', iterator: i, spec: {mode: chunked,"
    " chunk_size: 3, max_in_flight: 2}}, tool: {kind: noop}}\n",
    "shards": "  - {step: s, loop: {in: '{{ range(9) | list }}', iterator: i, spec: {mode: fanout,"
    " fanout: {partitions: 3}}}, tool: {kind: noop}, next: {arcs: [{step: r}]}}\n"
    "  - {step: r, reduce: {from: s, iterator: p}, tool: {kind: noop}}\n",
    "slots": "  - {step: s, loop: {cursor: {kind: postgres, auth: db, claim: select 1},"
    " iterator: i, spec: {mode: cursor, max_in_flight: 2}}, tool: {kind: noop}}\n",
    "chunks": "  - {step: s, tool: {kind: python, code: 'return []', stream: {}},"
    " next: {arcs: [{step: u}]}}\n  - {step: u, tool: {kind: noop}}\n",
}
GOOD = "  - {step: g, tool: {kind: noop}}\n"


async def _forever(turn: Callable[[], Awaitable[int]]) -> None:
    while True:
        await turn()


class World:
    """One shard's planner over memory; time passes when it is told to."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self.clock = ManualClock(SystemClock().now())
        self.broker = MemoryBroker(topology.declare(shard_count=1), self.clock)
        self.letters = MemoryDeadLetters(self.broker)
        self._stack = AsyncExitStack()
        self._keys = itertools.count(1)
        self.run = self.runner.run
        self.planner, self.adapters = self.run(self._open(folder))
        self._consumer = MemoryConsumer(self.broker, stream=topology.INGEST, name="planner-0")

    async def _open(self, folder: Path) -> tuple[ShardPlanner, planning.Adapters]:
        await self.broker.ensure()
        configs = system.load({"NOETL_PLANNER_FETCH_WAIT_S": "0.01"}, folder)
        opened = await self._stack.enter_async_context(system.open_system(configs))
        adapters = structs.replace(
            opened.adapters,
            publisher=self.broker,
            hints=self.broker,
            dead_letters=self.letters,
            consumer=partial(MemoryConsumer, self.broker, stream=topology.INGEST),
            clock=self.clock,
        )
        for name, text in {**VICTIMS, "good": GOOD}.items():
            whole = HEAD % (name, name) + text
            await playbooks.keep(opened.services, whole, level=Level.TOLERANT)
        (held,) = await adapters.shards.claim(owner="p", lease_s=1e6, shards_max=1, shard_count=1)
        fence = ShardFence(shard=held.shard, owner="p", epoch=held.epoch)
        together = planning.shared(adapters, configs.planner, producer="p")
        self._publishing = asyncio.ensure_future(_forever(together.publishing.turn))
        return planning.shard_planner(fence, adapters, together, configs.planner), adapters

    def close(self) -> None:
        self._publishing.cancel()
        self.run(self._stack.aclose())
        self.runner.close()

    def batch(self, execution_id: ExecutionId, *told: Fact, **changes: Any) -> FactBatch:
        values: dict[str, Any] = {
            "key": f"k-{next(self._keys)}",
            "execution_id": execution_id,
            "tenant_id": TENANT,
            "organization_id": ORGANIZATION,
            "producer": "test",
            "facts": list(told),
        }
        return FactBatch(**{**values, **changes})

    def send(self, data: bytes, *, subject: str | None = None) -> None:
        """Put a message into the stream as a server would that checks nothing."""
        about = subject or subjects.ingest(0, TENANT, ORGANIZATION)
        self.broker.put(Message(subject=about, message_id=f"m-{next(self._keys)}", data=data))

    def begin(self, path: str) -> ExecutionId:
        """Have an execution begin; return its id."""
        execution_id = ExecutionId(str(self.adapters.snowflake.next_id()))
        request = facts.ExecutionRequested(path=path)
        self.send(codec.encode(self.batch(execution_id, request)))
        self.settle()
        return execution_id

    def settle(self) -> None:
        """Take turns until every message is settled, whatever it says."""
        for _ in range(TURNS_MAX):
            self.run(self.planner.turn())
            if self.run(self._consumer.pending()) == (0, 0):
                return
            self.clock.advance(15)
        raise AssertionError("a message is never settled")

    def history(self, execution_id: ExecutionId) -> list[Envelope]:
        return self.run(self.adapters.ledger.read(execution_id, events_max=1000))

    def state(self, execution_id: ExecutionId) -> ExecutionState:
        return fold(empty(execution_id, TENANT, ORGANIZATION), self.history(execution_id))

    def buried(self) -> list[DeadLetter]:
        return self.run(self.letters.list_letters(letters_max=100_000))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    opened = World(tmp_path_factory.mktemp("payloads"))
    yield opened
    opened.close()


def assert_sound(world: World, execution_id: ExecutionId) -> None:
    """A history is its owner's, chained, folds, and its rows can be stored."""
    history = world.history(execution_id)
    assert_chained(history)
    owners = {(one.tenant_id, one.organization_id) for one in history}
    assert owners <= {(TENANT, ORGANIZATION)}
    folded = world.state(execution_id)
    shown = rows.changed_rows(folded, take_changes(folded))
    numbers = {
        f"{surface}.{name}": value
        for surface, listed in shown.items()
        for row in listed
        for name, value in row.items()
        if isinstance(value, int)
    }
    assert {name: one for name, one in numbers.items() if abs(one) > NUMBER_MAX} == {}


def tell(
    world: World, execution_id: ExecutionId, *spoilt: bytes, is_any: bool = False, **about: Any
) -> list[DeadLetter]:
    """Send spoilt messages between good ones of another execution; return what was buried.

    With `is_any` what it says may also be no result at all, which no decision can be made on, or
    make the planner tell executions that there are none of.
    """
    before = len(world.buried())
    neighbour = world.begin("good")
    (live,) = world.state(neighbour).commands.values()
    good = facts.CommandCompleted(
        command_id=live.command_id,
        attempt=live.attempt,
        worker_id=informers.WORKER,
        result=informers.RESULT,
    )
    with capture_logs() as logged:
        world.send(codec.encode(world.batch(neighbour, facts.TimerDue())))
        for data in spoilt:
            world.send(data, **about)
        world.send(codec.encode(world.batch(neighbour, good)))
        world.settle()
    assert [one for one in logged if one["event"] == "turn failed"] == []
    undecided = [one["execution_id"] for one in logged if one["event"] == "decision failed"]
    assert set(undecided) <= ({execution_id} if is_any else set())
    assert event_type(world.history(neighbour)[-1].event) == "playbook.completed"
    assert_sound(world, execution_id)
    letters = world.buried()[before:]
    told = [one for one in letters if one.data not in spoilt]
    assert all(one.reason for one in letters)
    assert {codec.decode(one.data)["producer"] for one in told} <= ({"p"} if is_any else set())
    return letters


FEW = settings(
    max_examples=max(settings().max_examples // EXAMPLES_SHARE, 10),
    suppress_health_check=list(HealthCheck),
    deadline=None,
)


@pytest.mark.parametrize("name", VICTIMS)
@FEW
@given(chance=st.randoms(use_true_random=True))
def test_a_spoilt_message_is_decided_or_buried_and_the_turn_goes_on(
    world: World, name: str, chance: Random
) -> None:
    victim = world.begin(name)
    told = chance.choice(list(informers.all_facts(world.state(victim))))
    whole = codec.encode(world.batch(victim, told))
    ways = [spoilt_by, twisted_by, partial(twisted_by, within="facts")]
    tell(world, victim, chance.choice(ways)(chance, whole), is_any=True)


@pytest.mark.parametrize("name", VICTIMS)
def test_whatever_may_be_said_can_be_said_at_once_and_in_any_order(world: World, name: str) -> None:
    for order in (1, -1):
        victim = world.begin(name)
        told = informers.all_facts(world.state(victim))[::order]
        letters = tell(world, victim, *[codec.encode(world.batch(victim, one)) for one in told])
        assert {one.reason.partition(" is ")[0] for one in letters} <= PLANNERS_OWN


def a_batch(world: World, victim: ExecutionId, **changes: Any) -> bytes:
    return codec.encode(structs.replace(world.batch(victim, facts.TimerDue()), **changes))


def test_facts_of_another_tenant_move_nothing(world: World) -> None:
    """Under a subject of its own, a stranger's facts about an execution that is not its own."""
    for is_known in (True, False):
        victim = world.begin("step")
        if not is_known:
            world.planner._states.clear()
        before = world.history(victim)
        for told in informers.all_facts(world.state(victim)):
            theirs = world.batch(victim, told, tenant_id="evil", organization_id="evil")
            data = codec.encode(theirs)
            subject = subjects.ingest(0, TenantId("evil"), OrganizationId("evil"))
            (letter,) = tell(world, victim, data, subject=subject)
            assert letter.reason.partition(":")[0] in {
                # Nobody else may say it; the stranger has no such playbook.
                *("ForeignExecution", "MalformedMessage", "PlaybookMissing"),
            }
        assert world.history(victim) == before


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tenant_id": "evil"}, "under the subject of 'default'"),
        ({"execution_id": "x"}, "no execution's id"),
        ({"execution_id": "9" * 19}, "no execution's id"),
        ({"execution_id": "0" * 18}, "no execution's id"),
        ({"execution_id": ""}, "no execution's id"),
        ({"execution_id": "424242"}, "PlaybookMissing"),
        ({"producer": "x" * MESSAGE_BYTES_MAX}, "exceed"),
    ],
)
def test_what_cannot_be_of_this_shard_is_buried_with_its_reason(
    world: World, changes: dict[str, Any], reason: str
) -> None:
    victim = world.begin("step")
    (letter,) = tell(world, victim, a_batch(world, victim, **changes))
    assert reason in letter.reason


def test_another_version_of_a_fact_is_buried(world: World) -> None:
    victim = world.begin("step")
    data = a_batch(world, victim).replace(b"timer_due", b"timer_due_v2")
    (letter,) = tell(world, victim, data)
    assert "MalformedMessage" in letter.reason


def test_a_fact_of_another_shard_is_refused_there() -> None:
    batch = FactBatch(
        key="k",
        execution_id=ExecutionId("7"),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        producer="t",
        facts=[],
    )
    stored = Stored(
        sequence=1,
        subject=subjects.ingest(0, TENANT, ORGANIZATION),
        message_id="m",
        data=codec.encode(batch),
        headers={},
    )
    broker = MemoryBroker(topology.declare(shard_count=1), SystemClock())
    found = MemoryDelivery(broker, key=("s", "c"), stored=stored, delivered=1)
    right = ids.shard_of(ExecutionId("7"), 4)
    assert admitting.read(found, shard=right, shard_count=4).execution_id == "7"
    with pytest.raises(MalformedMessage, match="SHARD_COUNT"):
        admitting.read(found, shard=(right + 1) % 4, shard_count=4)
