"""What one planner says of executions that wait for the store, heard by another's API."""

import asyncio

from tests.support.polling import eventually
from tests.support.servers import NatsServer

from noetl_chassis.clock import SystemClock
from noetl_contracts.ids import ExecutionId
from noetl_messaging.jetstream.connection import open_connection
from noetl_messaging.jetstream.hints import NatsHints
from noetl_planner.shards.store_waits import StoreWaits
from noetl_storage.ports.errors import StorageFull

ONE = ExecutionId("1")


async def test_another_process_hears_who_waits_and_when_it_goes_on(nats: NatsServer) -> None:
    clock = SystemClock()
    here, there = StoreWaits(clock), StoreWaits(clock)
    async with (
        open_connection(nats.url_for("planner"), name="here") as connection,
        open_connection(nats.url_for("planner"), name="there") as other,
    ):
        listening = asyncio.create_task(here.listen_to_planners(NatsHints(connection)))
        hints = NatsHints(other)

        async def is_heard() -> bool:
            await there.announce_wait(hints, ONE, StorageFull("no space left on device"))
            return here.find_reason(ONE) == "no space left on device"

        async def has_ended() -> bool:
            return here.find_reason(ONE) is None

        try:
            assert await eventually(is_heard)
            await there.announce_end(hints, ONE)
            assert await eventually(has_ended)
        finally:
            listening.cancel()
