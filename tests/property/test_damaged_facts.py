"""Messages that nobody should have sent, in one fetch with good ones: the planner's turn stands.

Each is refused with a reason among the dead letters, or decided; no turn ends in an error, no
history holds what was not sound, and whoever shares the fetch goes on.
"""

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.support import informers
from tests.support.one_shard import ORGANIZATION, TENANT, World, tell
from tests.support.spoiling import spoilt_by, twisted_by

from noetl_chassis.clock import SystemClock
from noetl_contracts import codec, ids, subjects
from noetl_contracts.errors import MalformedMessage
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import FactBatch
from noetl_messaging.memory.broker import MemoryBroker, StoredMessage
from noetl_messaging.memory.consumer import MemoryDelivery
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import MESSAGE_BYTES_MAX
from noetl_planner.facts import fact_intake

EXAMPLES_SHARE = 4
PLANNERS_OWN = {f"MalformedMessage: {name}" for name in ("ItemsCollected", "PartsCollected")}
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


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    opened = World(tmp_path_factory.mktemp("payloads"), VICTIMS)
    yield opened
    opened.close()


FEW = settings(
    max_examples=max(settings().max_examples // EXAMPLES_SHARE, 10),
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("name", VICTIMS)
@FEW
@given(chance=st.randoms(use_true_random=True))
def test_a_spoilt_message_is_decided_or_buried_and_the_turn_goes_on(
    world: World, name: str, chance: Random
) -> None:
    victim = world.begin(name)
    told = chance.choice(list(informers.all_facts(world.state(victim))))
    whole = codec.encode_json(world.batch(victim, told))
    ways = [spoilt_by, twisted_by, partial(twisted_by, within="facts")]
    tell(world, victim, chance.choice(ways)(chance, whole), is_any=True)


@pytest.mark.parametrize("name", VICTIMS)
def test_whatever_may_be_said_can_be_said_at_once_and_in_any_order(world: World, name: str) -> None:
    for order in (1, -1):
        victim = world.begin(name)
        fact = informers.all_facts(world.state(victim))[::order]
        dead_letters = tell(
            world, victim, *[codec.encode_json(world.batch(victim, item)) for item in fact]
        )
        assert {
            dead_letter.reason.partition(" is ")[0] for dead_letter in dead_letters
        } <= PLANNERS_OWN


def a_batch(world: World, victim: ExecutionId, **changes: Any) -> bytes:
    return codec.encode_json(structs.replace(world.batch(victim, facts.TimerDue()), **changes))


def test_facts_of_another_tenant_move_nothing(world: World) -> None:
    """Under a subject of its own, a stranger's facts about an execution that is not its own."""
    for is_known in (True, False):
        victim = world.begin("step")
        if not is_known:
            world.planner._states.drop_state(victim)
        before = world.history(victim)
        for fact in informers.all_facts(world.state(victim)):
            theirs = world.batch(victim, fact, tenant_id="evil", organization_id="evil")
            data = codec.encode_json(theirs)
            subject = subjects.build_ingest_subject(0, TenantId("evil"), OrganizationId("evil"))
            (dead_letter,) = tell(world, victim, data, subject=subject)
            assert dead_letter.reason.partition(":")[0] in {
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
    (dead_letter,) = tell(world, victim, a_batch(world, victim, **changes))
    assert reason in dead_letter.reason


def test_another_version_of_a_fact_is_buried(world: World) -> None:
    victim = world.begin("step")
    data = a_batch(world, victim).replace(b"timer_due", b"timer_due_v2")
    (dead_letter,) = tell(world, victim, data)
    assert "MalformedMessage" in dead_letter.reason


def test_a_fact_of_another_shard_is_refused_there() -> None:
    batch = FactBatch(
        key="k",
        execution_id=ExecutionId("7"),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        producer="t",
        facts=[],
    )
    stored = StoredMessage(
        sequence=1,
        subject=subjects.build_ingest_subject(0, TENANT, ORGANIZATION),
        message_id="m",
        data=codec.encode_json(batch),
        headers={},
    )
    broker = MemoryBroker(topology.declare_topology(shard_count=1), SystemClock())
    memory_delivery = MemoryDelivery(broker, key=("s", "c"), stored=stored, delivered=1)
    right = ids.find_shard(ExecutionId("7"), 4)
    batch, faults = fact_intake.read_delivery(memory_delivery, shard=right, shard_count=4)
    assert (batch.execution_id, faults) == ("7", [])
    with pytest.raises(MalformedMessage, match="SHARD_COUNT"):
        fact_intake.read_delivery(memory_delivery, shard=(right + 1) % 4, shard_count=4)


@pytest.mark.parametrize(("version", "faults"), [(-3, 0), (7, 0), (-(2**54), 1)])
def test_a_draft_may_be_asked_for_by_message(version: int, faults: int) -> None:
    """Versions of drafts are below zero."""
    batch = FactBatch(
        key="k",
        execution_id=ExecutionId("7"),
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        producer="t",
        facts=[facts.ExecutionRequested(path="p", version=version)],
    )
    stored = StoredMessage(
        sequence=1,
        subject=subjects.build_ingest_subject(0, TENANT, ORGANIZATION),
        message_id="m",
        data=codec.encode_json(batch),
        headers={},
    )
    broker = MemoryBroker(topology.declare_topology(shard_count=1), SystemClock())
    memory_delivery = MemoryDelivery(broker, key=("s", "c"), stored=stored, delivered=1)
    _, refused = fact_intake.read_delivery(memory_delivery, shard=0, shard_count=1)
    assert len(refused) == faults
