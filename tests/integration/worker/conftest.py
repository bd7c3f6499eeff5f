"""A worker without stores of its own, and a scripted server, for the tests of its tools."""

from collections.abc import AsyncIterator

import pytest
from tests.support.scripted import Script, script
from tests.support.working import Bench, bench


@pytest.fixture
async def worker() -> AsyncIterator[Bench]:
    async with bench() as opened:
        yield opened


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script() as opened:
        yield opened
