"""NetworkPolicies that are enforced: exactly the arrows of ARCHITECTURE.md are open."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.test_installed_charts import check_run
from tests.support import charts
from tests.support.cluster import policies
from tests.support.cluster.installed import Installed
from tests.support.cluster.kubectl import Kubectl
from tests.support.cluster.one_node import OneNode
from tests.support.cluster.releases import build_values
from tests.support.cluster.umbrella import Umbrella, open_releases
from tests.support.servers import wait_until

NAMESPACE, STRANGE = "guarded", "strange"
PLACES = {
    "ledger": ("postgres.postgres.svc", 5432),
    "streams": ("nats.nats.svc", 4222),
    "payloads": ("s3.store.svc", 8333),
    "api": (f"noetl-planner.{NAMESPACE}.svc", 8080),
    "health": (f"noetl-planner.{NAMESPACE}.svc", 9090),
    "cluster": ("kubernetes.default.svc", 443),
}
ARROWS = {
    "planner": {"ledger", "streams", "payloads"},
    "worker": {"streams", "payloads"},
    "projector": {"ledger", "streams", "payloads"},
    "outbox": {"ledger", "streams"},
    "reaper": {"ledger", "streams", "payloads"},
}
ENFORCED_S = 120.0
PROBE = """
import socket, sys
for address in sys.argv[1:]:
    name, host, port = address.split("=")
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
    except OSError as refusal:
        print(name, "closed", refusal)
    else:
        print(name, "open")
"""


def build_guarded_values(cluster: OneNode, chart: str) -> dict[str, Any]:
    """Build values whose policies know where this cluster's names and its payload store are."""
    values = build_values(chart)
    if chart == "platform":
        return values
    names = {"to": [{"ipBlock": {"cidr": f"{cluster.plane.address}/32"}}]}
    place = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "store"}}}
    egress: dict[str, Any] = {"dns": names}
    if "payloads" in ARROWS[chart]:
        egress["payloads"] = {"ports": [{"port": PLACES["payloads"][1]}], "to": [place]}
    return values | {"networkPolicy": {"egress": egress}}


@pytest.fixture(scope="module")
def system(cluster: OneNode, umbrella: Umbrella) -> Iterator[Installed]:
    """The umbrella while policies are enforced; before that, a worker reached everything."""
    if obstacle := policies.find_obstacle():
        pytest.skip(obstacle)
    values = {chart: build_guarded_values(cluster, chart) for chart in charts.CHARTS}
    with umbrella.install(NAMESPACE, values) as system:
        assert probe(cluster.kubectl, find_pod(cluster.kubectl, "worker")) == set(PLACES)
        with policies.enforce_policies(cluster.node):
            wait_until(
                lambda: "ledger" not in probe(cluster.kubectl, find_pod(cluster.kubectl, "worker")),
                timeout_s=ENFORCED_S,
                what="the worker does not reach the ledger",
            )
            yield system


@pytest.mark.parametrize("service", charts.SERVICES)
def test_a_service_reaches_where_its_arrows_point_and_nowhere_else(
    cluster: OneNode, system: Installed, service: str
) -> None:
    reached = probe(cluster.kubectl, find_pod(cluster.kubectl, service))
    # No policy keeps a pod from itself.
    own = {"api", "health"} if service == "planner" else set()
    assert reached - own == ARROWS[service]


def test_a_playbook_runs_behind_the_walls(system: Installed) -> None:
    check_run(system)


def test_a_pod_of_another_namespace_reaches_the_health_and_not_the_api(
    cluster: OneNode, system: Installed
) -> None:
    open_releases(cluster, STRANGE)
    container = {
        "name": "stranger",
        "image": "noetl-outbox:latest",
        "imagePullPolicy": "Never",
        "command": ["sleep", "infinity"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    security = {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    cluster.kubectl.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "stranger", "namespace": STRANGE},
            "spec": {"containers": [container], "securityContext": security},
        }
    )
    cluster.kubectl.run(
        "wait", "--for=condition=ready", "pod/stranger", "-n", STRANGE, "--timeout=120s"
    )
    reached = probe(cluster.kubectl, "stranger", namespace=STRANGE)
    # No policy holds for the stranger itself, nor for the three servers.
    assert reached == set(PLACES) - {"api"}
    cluster.kubectl.run("delete", "namespace", STRANGE, "--wait=false")


def find_pod(kubectl: Kubectl, service: str) -> str:
    """Find the pod of a service."""
    labels = f"app.kubernetes.io/name=noetl-{service}"
    (pod,) = kubectl.list_objects("pods", namespace=NAMESPACE, labels=labels)
    return str(pod["metadata"]["name"])


def probe(kubectl: Kubectl, pod: str, *, namespace: str = NAMESPACE) -> set[str]:
    """Name the places to which a pod can connect; each name of a host is resolved there."""
    addresses = [f"{name}={host}={port}" for name, (host, port) in PLACES.items()]
    printed = kubectl.run("exec", pod, "-n", namespace, "--", "python", "-c", PROBE, *addresses)
    return {line.split()[0] for line in printed.splitlines() if line.endswith(" open")}
