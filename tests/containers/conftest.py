"""Why containers are not tried, where they cannot be."""

from pathlib import Path

import pytest
from tests.support import containers

FOLDER = Path(__file__).parent
BASES = ("postgres:18", "nats:2.15-alpine", "chrislusf/seaweedfs:4.48")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.is_relative_to(FOLDER)]
    if not here:
        return
    images = (*BASES, *(f"noetl-{service}" for service in containers.SERVICES))
    if obstacle := containers.find_obstacle(images=images):
        for item in here:
            item.add_marker(pytest.mark.skip(reason=obstacle))
