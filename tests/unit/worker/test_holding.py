"""Nobody attends to a command that is over soon; one that lasts, or is interrupted, is attended."""

import asyncio

from tests.support.polling import eventually

from noetl_chassis.clock import SystemClock
from noetl_worker.domain.heartbeat import Lease
from noetl_worker.holding import Hold, Released


class Delivery:
    subject, data, message_id, delivered = "", b"", "", 1

    def __init__(self, stream_sequence: int = 7) -> None:
        self.stream_sequence = stream_sequence
        self.acknowledgements = 0

    async def ack(self) -> None:
        self.acknowledgements += 1

    async def nak(self, delay_s: float = 0.0) -> None: ...

    async def term(self) -> None: ...

    async def extend(self) -> bool:
        return True


def a_hold(delivery: Delivery | None = None, *, heartbeat_s: float = 10) -> Hold:
    lease = Lease(lease_s=30, heartbeat_s=heartbeat_s)
    return Hold(delivery or Delivery(), lease=lease, clock=SystemClock())


async def test_a_short_command_is_not_attended_to() -> None:
    begun: list[str] = []
    hold = a_hold()
    with hold.lasting(lambda: begun.append("now")):
        await asyncio.sleep(0)
    hold.interrupt(Released())
    assert begun == []


async def test_one_that_lasts_is_attended_to_once() -> None:
    begun: list[str] = []
    hold = a_hold()

    async def has_begun() -> bool:
        return bool(begun)

    with hold.lasting(lambda: begun.append("now")):
        await eventually(has_begun)
        hold.interrupt(Released())
    assert begun == ["now"]


async def test_an_interruption_is_heard_at_once() -> None:
    hold, raised = a_hold(), list[BaseException]()

    async def work(group: asyncio.TaskGroup) -> None:
        with hold.lasting(lambda: group.create_task(hold.keep(on_beat=lambda: None)) and None):
            hold.interrupt(Released())
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
    await hold.adopt(latest)
    keeping = asyncio.create_task(hold.keep(on_beat=lambda: None))

    async def is_settled_again() -> bool:
        return former.acknowledgements > 2

    await eventually(is_settled_again)
    keeping.cancel()
    assert latest.acknowledgements == 0
