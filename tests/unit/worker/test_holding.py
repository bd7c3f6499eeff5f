"""Nobody attends to a command that is over soon; one that lasts, or is interrupted, is attended."""

import asyncio

import pytest
from tests.support.polling import eventually

from noetl_chassis.clock import SystemClock
from noetl_worker.commands.command_lease import CommandLease, LeaseLost, Released
from noetl_worker.domain.lease_terms import Lease, fit_lease


class Delivery:
    subject, data, message_id, delivered = "", b"", "", 1

    def __init__(self, stream_sequence: int = 7, age_s: float = 0.0) -> None:
        self.stream_sequence = stream_sequence
        self.age_s = age_s
        self.acknowledgements = 0
        self.beats = 0

    async def ack(self) -> None:
        self.acknowledgements += 1

    async def nak(self, delay_s: float = 0.0) -> None: ...

    async def term(self) -> None: ...

    async def extend_ack_wait(self) -> bool:
        self.beats += 1
        return True


def a_hold(delivery: Delivery | None = None, *, heartbeat_s: float = 10) -> CommandLease:
    held = Lease(lease_s=30, heartbeat_s=heartbeat_s)
    return CommandLease(delivery or Delivery(), lease=held, clock=SystemClock())


async def test_a_short_command_is_not_attended_to() -> None:
    begun: list[str] = []
    hold = a_hold()
    with hold.extend_when_lasting(lambda: begun.append("now")):
        await asyncio.sleep(0)
    hold.interrupt_work(Released())
    assert begun == []


async def test_one_that_lasts_is_attended_to_once() -> None:
    begun: list[str] = []
    hold = a_hold()

    async def has_begun() -> bool:
        return bool(begun)

    with hold.extend_when_lasting(lambda: begun.append("now")):
        await eventually(has_begun)
        hold.interrupt_work(Released())
    assert begun == ["now"]


async def test_an_interruption_is_heard_at_once() -> None:
    hold, raised = a_hold(), list[BaseException]()

    async def work(group: asyncio.TaskGroup) -> None:
        with hold.extend_when_lasting(
            lambda: group.create_task(hold.extend_until_settled(on_beat=lambda: None)) and None
        ):
            hold.interrupt_work(Released())
            await asyncio.Event().wait()

    try:
        async with asyncio.TaskGroup() as group:
            await work(group)
    except* Released as several:
        raised.extend(several.exceptions)
    assert len(raised) == 1


async def test_a_message_that_was_overtaken_is_settled_until_the_end() -> None:
    former, latest = Delivery(7), Delivery(8)
    hold = a_hold(former, heartbeat_s=0.01)
    await hold.adopt_delivery(latest)
    keeping = asyncio.create_task(hold.extend_until_settled(on_beat=lambda: None))

    async def is_settled_again() -> bool:
        return former.acknowledgements > 2

    await eventually(is_settled_again)
    keeping.cancel()
    assert latest.acknowledgements == 0


async def test_a_lease_begins_when_its_delivery_was_handed_over() -> None:
    assert not a_hold(Delivery(age_s=20)).is_over
    assert a_hold(Delivery(age_s=24.1)).is_over
    lease = fit_lease(lease_s=5, heartbeat_s=1, ack_wait_s=30)
    short = [
        CommandLease(Delivery(age_s=age_s), lease=lease, clock=SystemClock()) for age_s in (28, 30)
    ]
    assert [item.is_over for item in short] == [False, True]


async def test_one_that_was_long_on_its_way_is_prolonged_at_once() -> None:
    delivery = Delivery(age_s=20)
    keeping = asyncio.create_task(a_hold(delivery).extend_until_settled(on_beat=lambda: None))

    async def has_beaten() -> bool:
        return delivery.beats > 0

    await eventually(has_beaten)
    keeping.cancel()


async def test_a_lease_is_lost_in_time_beside_an_acknowledgement_that_hangs() -> None:
    class Hanging(Delivery):
        async def ack(self) -> None:
            self.acknowledgements += 1
            if self.acknowledgements > 1:
                await asyncio.Event().wait()

    class Unheard(Delivery):
        async def extend_ack_wait(self) -> bool:
            self.beats += 1
            # Once: so that what came before is settled, and the line breaks there.
            return self.beats == 1

    former, latest = Hanging(7), Unheard(8)
    held = Lease(lease_s=0.1, heartbeat_s=0.01)
    hold = CommandLease(former, lease=held, clock=SystemClock())
    await hold.adopt_delivery(latest)
    with pytest.raises(LeaseLost):
        async with asyncio.timeout(60):
            await hold.extend_until_settled(on_beat=lambda: None)
    assert former.acknowledgements > 1
