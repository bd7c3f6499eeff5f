"""Shared values over every adapter: one swap of a revision wins."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from tests.support.bus import declared
from tests.support.servers import NatsServer

from noetl_chassis.clock import SystemClock
from noetl_contracts import subjects
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_messaging.jetstream.connection import ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.registers import JetStreamRegisters
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.memory.registers import MemoryRegisters
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import Registers

NAME = subjects.build_limit_subject(TenantId("acme"), OrganizationId("west"), "shop")
WAITS = ConnectionTimeouts(connect_s=30, request_s=30)


@pytest.fixture(params=["memory", "jetstream"])
async def registers(request: pytest.FixtureRequest) -> AsyncIterator[Registers]:
    if request.param == "memory":
        yield MemoryRegisters()
        return
    server: NatsServer = request.getfixturevalue("own_nats")
    async with (
        open_connection(server.url, name="admin", waits=WAITS) as admin,
        open_connection(server.url_for("worker"), name="worker", waits=WAITS) as worker,
    ):
        await JetStreamStreams(admin, declared(), now=SystemClock().now).ensure_streams()
        await admin.jetstream.purge_stream(topology.LIMITS)
        yield JetStreamRegisters(worker)


async def test_a_value_is_swapped_only_from_the_revision_that_it_has(registers: Registers) -> None:
    assert await registers.find_value(NAME) is None
    first = await registers.swap_value(NAME, b"1", revision=0)
    assert first is not None
    assert await registers.find_value(NAME) == (first, b"1")
    assert await registers.swap_value(NAME, b"x", revision=0) is None
    second = await registers.swap_value(NAME, b"2", revision=first)
    assert second is not None
    assert await registers.swap_value(NAME, b"x", revision=first) is None
    assert await registers.find_value(NAME) == (second, b"2")


async def test_of_many_who_swap_at_once_one_wins(registers: Registers) -> None:
    answers = await asyncio.gather(
        *[registers.swap_value(NAME, bytes([n]), revision=0) for n in range(20)]
    )
    assert len([answer for answer in answers if answer is not None]) == 1


async def test_values_of_other_names_do_not_matter(registers: Registers) -> None:
    other = subjects.build_limit_subject(TenantId("acme"), OrganizationId("east"), "shop")
    first = await registers.swap_value(NAME, b"1", revision=0)
    assert first is not None
    assert await registers.swap_value(other, b"2", revision=0) is not None
    assert await registers.swap_value(NAME, b"3", revision=first) is not None


async def test_without_a_stream_nothing_can_be_shared(own_nats: NatsServer) -> None:
    async with open_connection(own_nats.url, name="admin", waits=WAITS) as admin:
        await JetStreamStreams(admin, declared(), now=SystemClock().now).ensure_streams()
        await admin.jetstream.delete_stream(topology.LIMITS)
        registers = JetStreamRegisters(admin)
        with pytest.raises(MessagingUnavailable):
            await registers.find_value(NAME)
        with pytest.raises(MessagingUnavailable):
            await registers.swap_value(NAME, b"1", revision=0)
