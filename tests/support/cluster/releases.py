"""Charts installed, upgraded, rolled back and removed on a cluster, by Helm's own library."""

import os
from pathlib import Path
from typing import Any

from msgspec import Struct
from tests.support.cluster.kubectl import Kubectl
from tests.support.cluster.servers import PAYLOAD_URL

WAIT_S = 420
SMALL = {"requests": {"cpu": "20m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
RESTRICTED = "restricted"


def build_values(chart: str) -> dict[str, Any]:
    """Build the values with which a chart fits into one small node beside the three servers."""
    image = {"tag": "latest", "pullPolicy": "Never"}
    if chart == "platform":
        return {"image": image, "topology": {"replicas": 1}, "resources": SMALL}
    values: dict[str, Any] = {"image": image, "replicas": 1, "resources": SMALL}
    if chart in ("planner", "worker", "reaper"):
        values["settings"] = {"payloadUrl": PAYLOAD_URL}
    if chart == "reaper":
        values["settings"]["replicas"] = 1
    if chart == "worker":
        values["scaling"] = {"enabled": False}
        values["settings"]["callbackUrl"] = "http://noetl-planner:8080"
        values["sharedMemory"] = "256Mi"
    return values


class Releases(Struct, frozen=True, kw_only=True):
    """The releases of one namespace."""

    kubectl: Kubectl
    namespace: str

    def install(self, chart: Path, name: str, values: dict[str, Any]) -> Any:
        """Install a chart, and wait until everything of it is ready."""
        with self._open_config() as config:
            return config.install(
                os.fspath(chart),
                name,
                values,
                namespace=self.namespace,
                wait="watcher",
                timeout=WAIT_S,
            )

    def upgrade(self, chart: Path, name: str, values: dict[str, Any]) -> Any:
        """Upgrade a release, and wait until everything of it is ready."""
        with self._open_config() as config:
            return config.upgrade(
                os.fspath(chart),
                name,
                values,
                namespace=self.namespace,
                wait="watcher",
                timeout=WAIT_S,
            )

    def roll_back(self, name: str, revision: int) -> None:
        """Go back to a revision, and wait."""
        with self._open_config() as config:
            config.rollback(name, version=revision, wait="watcher", timeout=WAIT_S)

    def run_tests(self, name: str) -> Any:
        """Run the tests that the chart brings."""
        with self._open_config() as config:
            return config.test(name, timeout=WAIT_S, logs=True)

    def uninstall(self, name: str) -> None:
        """Remove a release, and wait until its objects are gone."""
        with self._open_config() as config:
            config.uninstall(name, wait="watcher", timeout=WAIT_S)

    def _open_config(self) -> Any:
        import helm_python  # noqa: PLC0415 - only the lanes of charts install it

        return helm_python.Config(kubeconfig_path=self.kubectl.config, namespace=self.namespace)
