"""All services in one process, their API, and a server whose answers a test writes down."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from litestar.testing import AsyncTestClient
from tests.support.person import Person
from tests.support.scripted import Script, script

from noetl_cli.local import system
from noetl_planner.api.app import create_app


@pytest.fixture
async def person(tmp_path: Path) -> AsyncIterator[Person]:
    environ = {
        "NOETL_AUTH": "off-on-loopback",
        "NOETL_PLANNER_COMMAND_HEARTBEAT_S": "0.2",
        "NOETL_PLANNER_CANCEL_GRACE_S": "10",
    }
    async with (
        system.open_system(system.load_settings(environ, tmp_path)) as opened,
        asyncio.TaskGroup() as services,
    ):
        services.create_task(system.run_services(opened))
        async with AsyncTestClient(create_app(opened.services)) as api:
            yield Person(api)
        opened.process.stop.set()


@pytest.fixture
async def server() -> AsyncIterator[Script]:
    async with script() as found:
        yield found
