from datetime import UTC, datetime
from typing import Any

import pytest
from tests.support.manual_clock import ManualClock
from tests.support.storage import a_request

from noetl_chassis import failpoints
from noetl_chassis.failpoints import Failpoint
from noetl_contracts import codec, ids, subjects
from noetl_contracts.commands.waits import MessageWait
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.ledger.records import HistoryHead, InboxMessage
from noetl_contracts.payloads import ResultEnvelope
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import CommandLost, Fact, MessageArrived, TimerDue
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.consumer import MemoryConsumer
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable, TopologyMismatch
from noetl_messaging.streams.ports import Delivery, Message
from noetl_reaper.domain import ReaperPolicy, SweepBounds
from noetl_reaper.service import Reaper, ReaperTables
from noetl_storage.memory.leases import MemoryInstances
from noetl_storage.memory.ledger import MemoryLedger
from noetl_storage.memory.outbox import MemoryRequests
from noetl_storage.memory.projections import MemoryProjections
from noetl_storage.memory.store import MemoryStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
X = ExecutionId("264905529753600000")
ACME, OPS = TenantId("acme"), OrganizationId("ops")
POLICY = ReaperPolicy(lease_s=30, grace_s=2, stalled_age_s=60, routes=IngestRoutes(shard_count=1))
BOUNDS = SweepBounds(
    leader_lease_s=8,
    commands_max=10,
    request_age_s=5,
    requests_max=10,
    executions_max=10,
    letters_max=10,
    partition_months=2,
)


class NoPartitions:
    """A ledger that needs no partitions."""

    async def ensure_partitions(self, months: int) -> int:
        assert months == BOUNDS.partition_months
        return 0


class World:
    """Reapers over one memory store and one broker."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOON)
        self.store = MemoryStore(clock=self.clock)
        self.broker = MemoryBroker(topology.declare_topology(shard_count=1), self.clock)
        self.projections = MemoryProjections(self.store)
        self.requests = MemoryRequests(self.store)

    def reaper(self, owner: str = "reaper-1") -> Reaper:
        return Reaper(
            tables=ReaperTables(
                instances=MemoryInstances(self.store),
                requests=self.requests,
                projections=self.projections,
                ledger=MemoryLedger(self.store),
                partitions=NoPartitions(),
            ),
            streams=self.broker,
            letters=MemoryDeadLetters(self.broker),
            hints=self.broker,
            clock=self.clock,
            owner=owner,
            policy=POLICY,
            bounds=BOUNDS,
        )

    async def project(
        self,
        version: int,
        *,
        head: int | None = None,
        status: str = "RUNNING",
        attempt: int = 1,
        wait: dict[str, Any] | None = None,
    ) -> None:
        """Show one command, heard just now, at a version; the ledger is there or ahead."""
        position = (await self.projections.list_positions([X])).get(X, 0)
        self.store.head_by_execution[X] = HistoryHead(
            execution_id=X, version=head or version, checksum=""
        )
        place: dict[str, Any] = {"execution_id": X, "tenant_id": ACME, "organization_id": OPS}
        now = self.clock.now()
        execution = {**place, "status": "RUNNING", "updated_at": now, "ended_at": None}
        command = {
            **place,
            "command_id": "77",
            "attempts": attempt,
            "status": status,
            "pool": "default",
            "lane": "io",
            "heard_at": now,
            "step_name": "w",
            "wait": wait,
        }
        await self.projections.apply_rows(
            shard=0,
            rows={"execution": [execution], "command": [command]},
            positions={X: (position, version)},
        )

    def reported(self) -> list[Fact]:
        return [
            fact
            for message in self.store.message_by_id.values()
            for fact in facts.decode_fact_batch(message.row.data).facts
        ]


LOST = CommandLost(command_id=ids.CommandId("77"), attempt=1, reason="lease_expired")


async def test_a_running_command_past_its_lease_is_reported_at_the_second_look_and_once() -> None:
    world = World()
    await world.project(5)
    reaper = world.reaper()
    world.clock.advance_by(32.1)
    assert await reaper.sweep()
    assert world.reported() == []
    world.clock.advance_by(2)
    for _ in range(3):
        assert await reaper.sweep()
    assert world.reported() == [LOST]


async def test_another_reaper_does_not_report_the_same_loss_again() -> None:
    world = World()
    await world.project(5)
    world.clock.advance_by(33)
    first, second = world.reaper("one"), world.reaper("two")
    for reaper in (first, first):
        await reaper.sweep()
    world.clock.advance_by(9)
    for reaper in (second, second):
        await reaper.sweep()
    assert world.reported() == [LOST]


async def test_a_reaper_that_ends_after_a_report_does_not_report_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    await world.project(5)
    reaper = world.reaper()
    world.clock.advance_by(34)
    await reaper.sweep()
    plan = failpoints.parse_plan("reaper.reported:error@1")
    monkeypatch.setattr(failpoints, "_plan", plan)
    with pytest.raises(failpoints.FailpointError):
        await reaper.sweep()
    for again in (reaper, world.reaper(), world.reaper()):
        await again.sweep()
    assert world.reported() == [LOST]
    assert plan is not None
    assert set(plan.reached) == {point for point in Failpoint if point.startswith("reaper.")}


async def test_a_command_within_its_lease_is_left_alone() -> None:
    world = World()
    await world.project(5)
    reaper = world.reaper()
    for _ in range(15):
        world.clock.advance_by(2)
        await reaper.sweep()
    assert world.reported() == []


async def test_a_projection_that_lags_costs_nobody_their_work() -> None:
    world = World()
    await world.project(5, head=9)
    reaper = world.reaper()
    world.clock.advance_by(33)
    for _ in range(5):
        await reaper.sweep()
    assert world.reported() == []
    await world.project(9)
    for _ in range(3):
        await reaper.sweep()
    assert world.reported() == []


async def test_the_next_attempt_has_a_lease_of_its_own() -> None:
    world = World()
    await world.project(5)
    reaper = world.reaper()
    world.clock.advance_by(33)
    for _ in range(2):
        await reaper.sweep()
    await world.project(6, attempt=2)
    world.clock.advance_by(33)
    for _ in range(2):
        await reaper.sweep()
    lost = [fact for fact in world.reported() if isinstance(fact, CommandLost)]
    assert [fact.attempt for fact in lost] == [1, 2]


async def test_an_issued_command_behind_others_is_not_lost_until_its_queue_is_empty() -> None:
    world = World()
    await world.broker.ensure_streams()
    await world.project(5, status="ISSUED")
    subject = subjects.build_command_subject("default", "io", ACME, OPS)
    await world.broker.publish_message(Message(subject=subject, message_id="1", data=b"other"))
    reaper = world.reaper()
    world.clock.advance_by(40)
    for _ in range(3):
        await reaper.sweep()
    assert CommandLost not in map(type, world.reported())
    pool = MemoryConsumer(world.broker, stream=topology.COMMANDS, name="worker-default-io")
    await (await pool.fetch_batch(messages_max=1, wait_s=0))[0].ack()
    for _ in range(2):
        await reaper.sweep()
    assert LOST in world.reported()


async def test_an_issued_command_whose_message_is_gone_is_lost_in_a_queue_that_never_rests() -> (
    None
):
    world = World()
    await world.broker.ensure_streams()
    await world.project(5, status="ISSUED")
    subject = subjects.build_command_subject("default", "io", ACME, OPS)
    pool = MemoryConsumer(world.broker, stream=topology.COMMANDS, name="worker-default-io")
    reaper = world.reaper()

    async def take(number: int) -> Delivery:
        for n in (2 * number, 2 * number + 1):  # one to take, and one that waits behind it
            await world.broker.publish_message(
                Message(subject=subject, message_id=str(n), data=b"other")
            )
        return (await pool.fetch_batch(messages_max=1, wait_s=0))[0]

    earlier = await take(0)
    world.clock.advance_by(33)
    for number in range(1, 4):
        # What may be the command's own message is still in somebody's hands.
        await (await take(number)).ack()
        await reaper.sweep()
    assert CommandLost not in map(type, world.reported())
    await earlier.ack()
    for number in range(4, 7):
        await (await take(number)).ack()
        await reaper.sweep()
    assert LOST in world.reported()


async def test_an_issued_command_of_a_wiped_stream_is_lost_although_others_wait() -> None:
    world = World()
    await world.broker.ensure_streams()
    await world.project(5, status="ISSUED")
    world.clock.advance_by(20)
    world.broker.wipe_all()
    reaper = world.reaper()
    await reaper.sweep()
    subject = subjects.build_command_subject("default", "io", ACME, OPS)
    await world.broker.publish_message(Message(subject=subject, message_id="1", data=b"other"))
    for _ in range(2):
        await reaper.sweep()
    assert LOST in world.reported()


async def test_a_running_command_keeps_its_lease_when_the_stream_is_wiped() -> None:
    world = World()
    await world.broker.ensure_streams()
    await world.project(5)
    world.clock.advance_by(20)
    world.broker.wipe_all()
    reaper = world.reaper()
    for _ in range(3):
        await reaper.sweep()
    assert world.reported() == []


async def test_wiped_streams_are_made_again() -> None:
    world = World()
    reaper = world.reaper()
    await reaper.sweep()
    world.broker.wipe_all()
    await reaper.sweep()
    assert await world.broker.list_mismatches() == []


async def test_a_request_that_no_planner_settled_is_sent_again() -> None:
    world = World()
    await world.requests.submit_request(a_request(data=b'{"nobody":"reads"}'))
    (first,) = list(world.store.message_by_id)
    del world.store.message_by_id[first]
    reaper = world.reaper()
    world.clock.advance_by(6)
    await reaper.sweep()
    assert len(world.store.message_by_id) == 1


async def test_a_silent_execution_is_nudged_once_per_period() -> None:
    world = World()
    await world.project(5, status="COMPLETED")
    reaper = world.reaper()
    world.clock.advance_by(61)
    for _ in range(3):
        await reaper.sweep()
    assert world.reported() == [TimerDue(reason="stalled")]


async def test_a_wait_whose_timer_went_with_its_planner_is_ended_once_per_period() -> None:
    world = World()
    await world.project(5, status="PARKED", wait={"wait": "time", "timeout_s": 10.0})
    reaper = world.reaper()
    world.clock.advance_by(11)
    await reaper.sweep()
    assert world.reported() == []
    world.clock.advance_by(2)
    for _ in range(3):
        await reaper.sweep()
    assert world.reported() == [TimerDue()]


async def test_only_one_of_two_reapers_leads_and_the_other_takes_over() -> None:
    world = World()
    item, two = world.reaper("one"), world.reaper("two")
    assert (await item.sweep(), await two.sweep()) == (True, False)
    world.clock.advance_by(9)
    assert (await two.sweep(), await item.sweep()) == (True, False)


@pytest.mark.parametrize("failure", [MessagingUnavailable, TopologyMismatch, ValueError])
async def test_one_duty_that_fails_does_not_keep_the_others_from_being_done(
    failure: type[Exception],
) -> None:
    class Unreachable(MemoryBroker):
        async def ensure_streams(self) -> list[str]:
            raise failure("no NATS")

    world = World()
    await world.broker.ensure_streams()
    await world.project(5, status="COMPLETED")
    broken = Unreachable(topology.declare_topology(shard_count=1), world.clock)
    world.broker = broken
    world.clock.advance_by(61)
    reaper = world.reaper()
    later: list[str] = []

    async def fire_due() -> None:
        later.append("fired")

    reaper.add_duty(fire_due)
    with pytest.raises(failure, match="no NATS"):
        await reaper.sweep()
    assert (world.reported(), later) == ([TimerDue(reason="stalled")], ["fired"])


async def test_messages_out_of_deliveries_become_letters() -> None:
    world = World()
    world.broker = MemoryBroker(
        topology.Topology(
            streams=topology.STREAMS,
            consumers=(
                topology.ConsumerSpec(stream=topology.INGEST, name="planner-0", deliveries_max=1),
            ),
        ),
        world.clock,
    )
    await world.broker.ensure_streams()
    subject = subjects.build_ingest_subject(0, ACME, OPS)
    await world.broker.publish_message(Message(subject=subject, message_id="1", data=b"poison"))
    planner = MemoryConsumer(world.broker, stream=topology.INGEST, name="planner-0")
    await planner.fetch_batch(messages_max=1, wait_s=0)
    world.clock.advance_by(6)
    await world.reaper().sweep()
    (dead_letter,) = await MemoryDeadLetters(world.broker).list_letters(letters_max=9)
    assert dead_letter.data == b"poison"


async def test_a_message_that_nobody_was_told_of_is_handed_over_once() -> None:
    world = World()
    letter = InboxMessage(
        tenant_id=ACME,
        organization_id=OPS,
        address="signal/k",
        digest="d",
        data=codec.encode_json(ResultEnvelope(status="ok", context={"data": 1})),
    )
    await world.requests.keep_message(letter, open_wait=None, is_single=False)
    reaper = world.reaper()
    await reaper.sweep()
    assert world.reported() == []
    wait = MessageWait(key="t/1/1", task="t", mode="signal", address="signal/k", timeout_s=60.0)
    await world.project(3, status="PARKED")
    (row,) = world.store.row_by_key_by_surface["command"].values()
    row["wait"], row["step_name"] = codec.to_builtins(wait), "hold"
    for _ in range(2):
        await reaper.sweep()
    (told,) = world.reported()
    assert isinstance(told, MessageArrived)
    assert (told.command_id, told.key) == (row["command_id"], "t/1/1")
    assert told.result.context == {"data": 1}


async def test_a_parked_command_is_held_by_nobody_and_never_reported_lost() -> None:
    world = World()
    await world.project(3, status="PARKED")
    reaper = world.reaper()
    world.clock.advance_by(50)
    for _ in range(3):
        await reaper.sweep()
    assert world.reported() == []
