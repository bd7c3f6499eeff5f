"""The same bus twice: within the process, and JetStream."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.bus import Bus, jetstream_bus, memory_bus
from tests.support.servers import NatsServer, nats_server


@pytest.fixture(scope="module")
def own_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server whose streams these tests may remove."""
    with nats_server(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(params=["memory", "jetstream"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    """One empty bus with the topology applied."""
    if request.param == "memory":
        opened = memory_bus()
    else:
        opened = jetstream_bus(request.getfixturevalue("own_nats"))
    async with opened as made:
        await made.streams.ensure()
        yield made
