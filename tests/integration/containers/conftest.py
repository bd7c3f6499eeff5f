"""A Docker that runs containers of a small image; why there is none, where there is none."""

from pathlib import Path

import pytest
from tests.support import docker_containers

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.is_relative_to(FOLDER)]
    if here and (obstacle := docker_containers.find_obstacle()):
        for item in here:
            item.add_marker(pytest.mark.skip(reason=obstacle))
