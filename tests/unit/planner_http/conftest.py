from collections.abc import AsyncIterator

import pytest
from litestar import Litestar
from litestar.testing import AsyncTestClient
from tests.support.api import ApiWorld

from noetl_planner.api.app import create_app

Api = AsyncTestClient[Litestar]


@pytest.fixture
async def world() -> ApiWorld:
    return ApiWorld()


@pytest.fixture
async def api(world: ApiWorld) -> AsyncIterator[Api]:
    async with AsyncTestClient(create_app(world.services())) as client:
        yield client
