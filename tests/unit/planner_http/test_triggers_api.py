"""Triggers: which messages they take, what those start, and what becomes of the others."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import PLAYBOOK, ApiWorld, beginning, ending
from tests.support.polling import eventually
from tests.support.storage import TENANT

from noetl_chassis.clock import SystemClock
from noetl_contracts.identity.quotas import TenantQuota
from noetl_contracts.ids import TenantId
from noetl_contracts.requests import facts, triggers
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_messaging.memory.broker import MemoryBroker, matches_pattern
from noetl_messaging.memory.consumer import MemoryConsumer
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import DeadLetter, Message
from noetl_planner.api.http import quota_board
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.triggers import message_waits, trigger_listener
from noetl_planner.api.triggers.message_waits import MessageWaits
from noetl_planner.api.triggers.trigger_listener import TriggerListener
from noetl_storage.memory.registry import MemoryCatalog
from noetl_storage.memory.store import MemoryStore
from noetl_storage.memory.triggers import MemoryTriggers
from noetl_storage.ports.errors import StorageUnavailable

Api = AsyncTestClient[Litestar]
ADDRESS = "/api/triggers/orders"


class StandingClock(SystemClock):
    """A clock that a test moves."""

    at_s = 0.0

    def monotonic_s(self) -> float:
        return self.at_s


class Bus:
    """The stream of triggers, and listeners as planners have them."""

    def __init__(self, world: ApiWorld, **changes: object) -> None:
        self.services: ApiServices = world.services(**changes)
        self.broker = MemoryBroker(topology.declare_topology(shard_count=1), SystemClock())
        self.letters = MemoryDeadLetters(self.broker)
        place = self.services.tenant_scope
        self.prefix = f"noetl.triggers.{place['tenant_id']}.{place['organization_id']}"

    async def publish(self, subject: str, data: bytes, *, message_id: str = "") -> None:
        name = message_id or f"m{len(data)}{subject}"
        subject = subject if subject.startswith("noetl.") else f"{self.prefix}.{subject}"
        await self.broker.publish_message(Message(subject=subject, message_id=name, data=data))

    def consumer(self) -> MemoryConsumer:
        return MemoryConsumer(self.broker, stream=topology.TRIGGERS, name=topology.TRIGGER_CONSUMER)

    async def take(self) -> None:
        listener = TriggerListener(
            self.services, consumer=self.consumer(), dead_letters=self.letters
        )
        await listener.take_deliveries(await self.consumer().fetch_batch(messages_max=9, wait_s=0))

    async def dead(self) -> list[DeadLetter]:
        return await self.letters.list_letters(letters_max=9)


@pytest.fixture
async def bus(world: ApiWorld, api: Api) -> Bus:
    text = {"Content-Type": "text/yaml"}
    assert (await api.post("/api/catalog/register", content=PLAYBOOK, headers=text)).is_success
    made = Bus(world)
    await made.broker.ensure_streams()
    return made


async def keep(api: Api, address: str = ADDRESS, **body: Any) -> Any:
    return await api.put(address, json={"path": "demo/hello", "subject": "orders.*", **body})


def asked(world: ApiWorld) -> list[ExecutionRequested]:
    return [
        fact
        for message in world.store.message_by_id.values()
        for fact in facts.decode_fact_batch(message.row.data).facts
        if isinstance(fact, ExecutionRequested)
    ]


async def test_a_message_starts_its_playbook_with_the_inputs_that_the_trigger_makes(
    world: ApiWorld, api: Api, bus: Bus
) -> None:
    inputs = {"who": "{{ body.customer }}", "of": "{{ subject }}", "id": "{{ message_id }}"}
    kept = await keep(api, inputs=inputs)
    assert kept.json()["publish_to"] == f"{bus.prefix}.orders.*"
    await bus.publish("orders.created", b'{"customer": "Ada"}', message_id="o-1")
    await bus.take()
    (fact,) = asked(world)
    assert fact.workload == {"who": "Ada", "of": "orders.created", "id": "o-1"}
    assert (fact.path, fact.requested_by) == ("demo/hello", "trigger orders")
    assert await bus.consumer().count_pending() == (0, 0)
    assert await bus.dead() == []


async def test_a_message_that_is_handled_twice_starts_one_execution(
    world: ApiWorld, api: Api, bus: Bus
) -> None:
    await keep(api)
    await bus.publish("orders.created", b'{"who": "Ada"}', message_id="o-1")
    (delivery,) = await bus.consumer().fetch_batch(messages_max=1, wait_s=0)
    for _ in range(2):
        listener = TriggerListener(bus.services, consumer=bus.consumer(), dead_letters=bus.letters)
        await listener.take_deliveries([delivery])
    assert len(asked(world)) == 1
    assert await bus.dead() == []


@pytest.mark.parametrize(
    "condition", ["{{ body.total > 100 }}", "body.total > 100 and subject == 'orders.created'"]
)
async def test_messages_for_which_the_filter_is_false_start_nothing_and_are_settled(
    world: ApiWorld, api: Api, bus: Bus, condition: str
) -> None:
    kept = await keep(api, filter=condition)
    assert kept.json()["filter"] == condition
    for total in (99, 101, 100):
        await bus.publish("orders.created", b'{"total": %d}' % total, message_id=f"o-{total}")
    await bus.take()
    assert [fact.workload for fact in asked(world)] == [{"total": 101}]
    assert await bus.consumer().count_pending() == (0, 0)
    assert await bus.dead() == []


async def test_a_message_that_the_filter_does_not_fit_becomes_a_dead_letter(
    world: ApiWorld, api: Api, bus: Bus
) -> None:
    await keep(api, filter="{{ body.total > 100 }}")
    await bus.publish("orders.created", b'{"totl": 101}')
    await bus.take()
    assert asked(world) == []
    (dead_letter,) = await bus.dead()
    assert "filter does not fit this message" in dead_letter.reason
    assert "total" in dead_letter.reason


async def test_inputs_that_read_what_no_message_has_are_refused(api: Api, bus: Bus) -> None:
    assert bus.prefix
    answer = await keep(api, inputs={"who": {"id": "{{ query.id }}"}})
    assert (answer.status_code, answer.json()["code"]) == (422, "template_refused")
    assert answer.json()["detail"] == "inputs: 'query' is nothing of a message"
    assert answer.json()["hint"] == "inputs read body, message_id, subject of a message"


@pytest.mark.parametrize(
    ("condition", "detail"),
    [
        ("{{ body.total > }}", "filter: "),
        ("{{ workload.total }}", "'workload' is nothing of a message"),
        ("{{ bdy.total }}", "'bdy' is nothing of a message"),
    ],
)
async def test_a_filter_that_cannot_be_judged_is_refused(
    api: Api, bus: Bus, condition: str, detail: str
) -> None:
    assert bus.prefix
    answer = await keep(api, filter=condition)
    assert (answer.status_code, answer.json()["code"]) == (422, "template_refused")
    assert detail in answer.json()["detail"]


@pytest.mark.parametrize(
    ("subject", "data", "reason"),
    [
        ("orders.created", b"not json", "not JSON"),
        ("orders.created", b'{"who": "' + b"x" * 100 + b'"}', "takes 111 bytes"),
        ("orders.created", b"{}", "do not fit this message"),
        ("elsewhere", b"{}", "no trigger takes messages"),
        ("orders.a.b", b"{}", "no trigger takes messages"),
        ("noetl.triggers.x", b"{}", "names no tenant"),
    ],
)
async def test_a_message_that_can_start_nothing_becomes_a_dead_letter_with_its_reason(
    world: ApiWorld, api: Api, bus: Bus, subject: str, data: bytes, reason: str
) -> None:
    await keep(api, inputs={"who": "{{ body.who }}"}, body_bytes_max=100)
    await bus.publish(subject, data)
    await bus.take()
    (dead_letter,) = await bus.dead()
    assert reason in dead_letter.reason
    assert dead_letter.data == data
    assert asked(world) == []
    assert await bus.consumer().count_pending() == (0, 0)


async def test_a_dead_letter_starts_its_playbook_once_the_trigger_is_there(
    world: ApiWorld, api: Api, bus: Bus
) -> None:
    await bus.publish("orders.created", b'{"who": "Ada"}')
    await bus.take()
    (dead_letter,) = await bus.dead()
    await keep(api)
    await bus.letters.requeue_letter(dead_letter.sequence)
    await bus.take()
    assert [fact.workload for fact in asked(world)] == [{"who": "Ada"}]


async def test_messages_wait_while_the_store_is_away(world: ApiWorld, api: Api) -> None:
    class Away(MemoryTriggers):
        async def list_triggers(self, **_: Any) -> Any:
            raise StorageUnavailable("no database")

    bus = Bus(world, triggers=Away(world.store))
    await bus.broker.ensure_streams()
    await bus.publish("orders.created", b"{}")
    await bus.take()
    assert await bus.dead() == []
    assert (await bus.consumer().count_pending())[1] == 1


async def test_another_tenants_message_finds_none_of_ours(
    world: ApiWorld, api: Api, bus: Bus
) -> None:
    await keep(api)
    await bus.publish("noetl.triggers.other.ops.orders.created", b"{}")
    await bus.take()
    assert asked(world) == []
    assert TenantId("other") != bus.services.tenant_id
    assert "no trigger" in (await bus.dead())[0].reason


async def test_a_subject_starts_one_playbook(api: Api, bus: Bus) -> None:
    assert (await keep(api)).status_code == 200
    taken = await keep(api, "/api/triggers/more", subject="orders.created")
    assert (taken.status_code, taken.json()["code"]) == (409, "subject_taken")
    assert "'orders'" in taken.json()["detail"]
    assert (await keep(api, "/api/triggers/more", subject="orders.a.>")).status_code == 200
    assert (await keep(api, subject="orders.x")).status_code == 200
    assert [trigger["name"] for trigger in (await api.get("/api/triggers")).json()["triggers"]] == [
        "more",
        "orders",
    ]
    assert (await api.get(ADDRESS)).json()["subject"] == "orders.x"
    assert (await api.delete(ADDRESS)).status_code == 200
    answer = await api.delete("/api/triggers/mor")
    assert (answer.status_code, answer.json()["hint"]) == (404, "did you mean 'more'?")


@pytest.mark.parametrize("subject", ["", "a..b", "a.>.b", "a b", "é", ">>", "a." * 20 + "a"])
async def test_what_is_no_subject_is_refused(api: Api, bus: Bus, subject: str) -> None:
    answer = await keep(api, subject=subject)
    assert answer.status_code == 400, answer.text


async def test_a_disabled_trigger_starts_nothing(world: ApiWorld, api: Api, bus: Bus) -> None:
    await keep(api, enabled=False)
    await bus.publish("orders.created", b"{}")
    await bus.take()
    assert asked(world) == []
    assert "disabled" in (await bus.dead())[0].reason


TOKENS = st.sampled_from(["a", "b", "*"])
PATTERNS = st.builds(
    lambda tokens, rest: ".".join([*tokens, *([">"] if rest or not tokens else [])]),
    st.lists(TOKENS, max_size=3),
    st.booleans(),
)
SUBJECTS = st.lists(st.sampled_from("ab"), min_size=1, max_size=4).map(".".join)


@given(first=PATTERNS, second=PATTERNS, subject=SUBJECTS)
def test_patterns_overlap_where_one_subject_is_both_s(
    first: str, second: str, subject: str
) -> None:
    assert triggers.find_subject_fault(first) is None
    assert triggers.matches_subject(first, subject) == matches_pattern(first, subject)
    if matches_pattern(first, subject) and matches_pattern(second, subject):
        assert triggers.do_patterns_overlap(first, second)
    assert triggers.do_patterns_overlap(first, second) == triggers.do_patterns_overlap(
        second, first
    )


async def test_messages_beyond_the_bound_wait_and_start_when_a_place_is_free(
    world: ApiWorld, api: Api, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_waits, "WAIT_S", 0.0)
    assert (await keep(api, max_in_flight=2)).json()["max_in_flight"] == 2
    for n in range(4):
        await bus.publish("orders.created", b'{"n": %d}' % n, message_id=f"o-{n}")
    await bus.take()
    assert [fact.workload for fact in asked(world)] == [{"n": 0}, {"n": 1}]
    # The others are not settled, and nothing is a dead letter.
    assert await bus.consumer().count_pending() == (0, 2)
    first = next(iter(world.store.request_by_id.values())).request.execution_id
    await world.append(first, beginning() + ending())
    await world.project(first)

    async def has_started() -> bool:
        await bus.take()
        return len(asked(world)) == 3

    assert await eventually(has_started)
    assert asked(world)[-1].workload == {"n": 2}
    assert await bus.consumer().count_pending() == (0, 1)
    assert await bus.dead() == []


async def test_messages_of_a_suspended_tenant_wait_until_it_resumes(
    world: ApiWorld, api: Api, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(message_waits, "WAIT_S", 0.0)
    monkeypatch.setattr(quota_board, "REMEMBERED_S", 0.0)
    assert (await keep(api)).is_success
    await world.quotas.put_quota(TenantQuota(tenant_id=TENANT, is_suspended=True))
    await bus.publish("orders.created", b'{"n": 1}', message_id="o-1")
    await bus.take()
    assert asked(world) == []
    assert await bus.consumer().count_pending() == (0, 1)
    await world.quotas.put_quota(TenantQuota(tenant_id=TENANT))

    async def has_started() -> bool:
        await bus.take()
        return len(asked(world)) == 1

    assert await eventually(has_started)
    assert await bus.dead() == []


async def test_a_message_that_can_start_nothing_keeps_no_place(
    world: ApiWorld, api: Api, bus: Bus
) -> None:
    await keep(api, max_in_flight=1)
    world.catalog = MemoryCatalog(MemoryStore(clock=SystemClock()))
    other = Bus(world, catalog=world.catalog)
    await other.broker.ensure_streams()
    await other.publish("orders.created", b"{}", message_id="o-1")
    await other.take()
    assert len(await other.dead()) == 1
    await bus.publish("orders.created", b"{}", message_id="o-2")
    await bus.take()
    assert len(asked(world)) == 1


async def test_a_message_of_an_ended_execution_needs_no_place_for_long(
    world: ApiWorld, api: Api, bus: Bus
) -> None:
    await keep(api)
    await bus.publish("orders.created", b"{}", message_id="o-1")
    (delivery,) = await bus.consumer().fetch_batch(messages_max=1, wait_s=0)
    listener = TriggerListener(bus.services, consumer=bus.consumer(), dead_letters=bus.letters)
    await listener.take_deliveries([delivery])
    await keep(api, max_in_flight=1)
    # It comes again, as after a lost acknowledgement.
    await listener.take_deliveries([delivery])
    await bus.publish("orders.created", b"{}", message_id="o-2")
    await bus.take()
    assert len(asked(world)) == 2


def test_messages_of_a_full_subject_come_again_in_order_and_so_many_a_second() -> None:
    clock = StandingClock()
    waits = MessageWaits(clock)
    assert not waits.is_full("a")
    waits.note_full("a")
    assert waits.is_full("a")
    assert not waits.is_full("b")
    returns = [waits.plan_return_s("a") for _ in range(500)]
    assert returns == sorted(returns)
    assert returns[0] >= message_waits.WAIT_S
    assert returns[-1] - returns[0] == pytest.approx(499 / message_waits.MESSAGES_PER_S)
    clock.at_s += message_waits.FULL_S
    assert not waits.is_full("a")
    for number in range(message_waits.SUBJECTS_MAX + 1):
        waits.note_full(str(number))
    assert (waits.is_full("0"), waits.is_full("1")) == (False, True)


async def test_a_message_that_comes_again_keeps_its_place_and_its_execution(
    world: ApiWorld, api: Api, bus: Bus
) -> None:
    await keep(api, max_in_flight=2)
    await bus.publish("orders.created", b'{"n": 1}', message_id="o-1")
    (delivery,) = await bus.consumer().fetch_batch(messages_max=1, wait_s=0)
    # A planner asks for the execution and dies before it settles the message.
    first = await trigger_listener.start_from_message(bus.services, delivery)
    again = await trigger_listener.start_from_message(bus.services, delivery)
    assert first is not None
    assert again is not None
    assert first.execution_id == again.execution_id
    assert len(asked(world)) == 1
    (claims,) = world.store.claim_by_message_by_trigger.values()
    assert [execution for execution, _ in claims.values()] == [first.execution_id]
