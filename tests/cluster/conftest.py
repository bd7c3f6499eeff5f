"""One cluster for the folder; why there is none, where there is none."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.support import charts
from tests.support.cluster import one_node
from tests.support.cluster.one_node import OneNode
from tests.support.cluster.umbrella import Umbrella

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.is_relative_to(FOLDER)]
    if not here:
        return
    obstacle = one_node.find_obstacle()
    if not obstacle and find_spec("helm_python") is None:
        obstacle = "Helm is not installed, which `make test/cluster` does"
    for item in here:
        item.add_marker(pytest.mark.timeout(1500))
        if obstacle:
            item.add_marker(pytest.mark.skip(reason=obstacle))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneNode]:
    with one_node.start_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return charts.copy_charts(tmp_path_factory.mktemp("charts"))


@pytest.fixture(scope="session")
def umbrella(cluster: OneNode, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Umbrella:
    return Umbrella(cluster=cluster, folder=folder, home=tmp_path_factory.mktemp("home"))
