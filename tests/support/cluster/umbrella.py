"""The umbrella chart in a namespace of its own, for the tests of a file, and removed after them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct
from tests.support import charts
from tests.support.cluster import installed, manifests
from tests.support.cluster.installed import Installed
from tests.support.cluster.one_node import OneNode
from tests.support.cluster.releases import Releases, build_values

RELEASE, PLANNER = "noetl", "noetl-planner"


class Umbrella(Struct, frozen=True, kw_only=True):
    """Installs the chart noetl of `folder`; commands of its users run in `home`."""

    cluster: OneNode
    folder: Path
    home: Path

    @contextmanager
    def install(self, namespace: str, values: dict[str, Any]) -> Iterator[Installed]:
        """Install it for the block, and check that nothing of it is left."""
        releases = open_releases(self.cluster, namespace)
        try:
            releases.install(self.folder / charts.UMBRELLA, RELEASE, values)
            yield open_system(self.cluster, self.home, namespace)
        finally:
            releases.uninstall(RELEASE)
        assert installed.wait_until_gone(self.cluster.kubectl, namespace) == set()


def open_releases(cluster: OneNode, namespace: str) -> Releases:
    """Make a namespace as strict as Kubernetes knows, with the Secrets of the charts."""
    strict = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.kubectl.apply(manifests.build_namespace(namespace, **strict))
    cluster.servers.give_secrets(namespace)
    return Releases(kubectl=cluster.kubectl, namespace=namespace)


def open_system(
    cluster: OneNode, home: Path, namespace: str, *, planner: str = PLANNER
) -> Installed:
    """Return what is installed in a namespace as its users see it."""
    return Installed(cluster.kubectl, cluster.servers, home, namespace=namespace, planner=planner)


def build_all_values() -> dict[str, Any]:
    """Build the values with which every chart fits into one small node."""
    return {chart: build_values(chart) for chart in charts.CHARTS}


def build_api_server_rule(cluster: OneNode) -> dict[str, Any]:
    """Build the worker's rule for the API server of this cluster."""
    return {"apiServer": [{"ipBlock": {"cidr": f"{cluster.plane.address}/32"}}]}
