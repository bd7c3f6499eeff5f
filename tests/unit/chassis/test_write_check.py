import asyncio

import pytest
from tests.support.polling import eventually

from noetl_chassis import write_check
from noetl_chassis.health import HealthChecks
from noetl_chassis.lifecycle import ServiceProcess
from noetl_chassis.write_check import WriteCheck, WriteTimeout
from noetl_contracts.errors import Retryable


class Store:
    """Refuses writes while it has a reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.writes = 0

    async def write(self) -> None:
        self.writes += 1
        if self.reason:
            raise Retryable(self.reason)


def build_process() -> ServiceProcess:
    return ServiceProcess(
        instance="one", stop=asyncio.Event(), health=HealthChecks(), health_port=0
    )


async def test_a_store_is_in_readiness_from_its_first_write_on() -> None:
    store, process = Store("no volume has room"), build_process()

    async def is_store_named() -> bool:
        return await process.health.list_problems() == {"store": "no volume has room"}

    async def is_well() -> bool:
        return await process.health.list_problems() == {}

    async with write_check.check_writes(store.write, name="store", process=process):
        assert await process.health.list_problems() == {"store": "nothing was written yet"}
        await eventually(is_store_named)
        assert await process.health.list_problems(excluded=["store"]) == {}
        store.reason = ""
        await eventually(is_well)
        assert store.writes > 1


async def test_a_store_is_written_to_again_after_its_interval() -> None:
    store, process = Store(""), build_process()

    async def is_written_again() -> bool:
        return store.writes > 2

    async def is_named() -> bool:
        return "store" in await process.health.list_problems()

    async with write_check.check_writes(
        store.write, name="store", process=process, interval_s=0.01
    ):
        await eventually(is_written_again)
        store.reason = "gone"
        await eventually(is_named)


async def test_what_ends_the_block_is_raised_as_it_is() -> None:
    store, process = Store(""), build_process()
    with pytest.raises(Retryable, match="of the block"):
        async with write_check.check_writes(store.write, name="store", process=process):
            raise Retryable("of the block")


async def test_a_write_that_never_ends_is_a_problem() -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    check = WriteCheck(hang, timeout_s=0.01)
    with pytest.raises(WriteTimeout):
        await check.try_write()
    assert "did not end within 0.01 s" in (check.find_problem() or "")
