"""The same bus within the process and over JetStream, asked anew or by requests that stand."""

from collections.abc import AsyncIterator, Iterator

import pytest
from tests.support.bus import Bus, jetstream_bus, memory_bus
from tests.support.container_servers import open_nats
from tests.support.servers import NatsServer


@pytest.fixture(scope="module")
def own_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """A server whose streams these tests may remove."""
    with open_nats(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture(params=[None, 0, 1, 16], ids=["memory", "jetstream", "standing-1", "standing-16"])
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Bus]:
    """One empty bus with the topology applied."""
    if request.param is None:
        opened = memory_bus()
    else:
        opened = jetstream_bus(request.getfixturevalue("own_nats"), standing=request.param)
    async with opened as made:
        await made.streams.ensure_streams()
        yield made
