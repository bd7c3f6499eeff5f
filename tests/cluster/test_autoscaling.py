"""KEDA's own operator scales workers by what the planner counts."""

import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.support.cluster import keda
from tests.support.cluster.installed import Installed
from tests.support.cluster.one_node import OneNode
from tests.support.cluster.umbrella import Umbrella, build_all_values
from tests.support.servers import wait_until

NAMESPACE = "scaled"
WORKERS = "noetl-worker"
ITEMS, WORKERS_MAX, FALLBACK = 10_000, 3, 2
RISE_S, FALL_S = 120.0, 300.0
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: many, path: cluster/many}}
workflow:
  - step: work
    loop:
      in: "{{{{ range({items}) | list }}}}"
      iterator: number
      spec: {{mode: parallel, max_in_flight: {items}}}
    tool: {{kind: python, code: "await asyncio.sleep({pause_s}); return 1"}}
"""


@pytest.fixture(scope="module")
def system(
    cluster: OneNode, umbrella: Umbrella, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installed]:
    if obstacle := keda.find_obstacle():
        pytest.skip(obstacle)
    keda.install_keda(cluster.node, cluster.kubectl, tmp_path_factory.mktemp("keda"))
    values = build_all_values()
    values["worker"] |= {
        "replicas": FALLBACK,
        "scaling": {"replicasMin": 0, "replicasMax": WORKERS_MAX, "cooldownS": 20},
    }
    with umbrella.install(NAMESPACE, values) as system:
        yield system


def test_one_command_wakes_a_pool_of_none(cluster: OneNode, system: Installed) -> None:
    wait_for_workers(cluster, 0, within_s=FALL_S)
    started = time.monotonic()
    system.run_playbook(PLAYBOOK.format(items=1, pause_s=0))
    report("from one waiting command to its end, pool of none", started)


def test_many_waiting_items_raise_workers_and_none_lower_them(
    cluster: OneNode, system: Installed
) -> None:
    execution = system.start_playbook(PLAYBOOK.format(items=ITEMS, pause_s=2))
    started = time.monotonic()
    wait_for_workers(cluster, WORKERS_MAX, within_s=RISE_S)
    report("from 10,000 items to the most workers", started)
    system.noetl("cancel", execution)
    started = time.monotonic()
    wait_for_workers(cluster, 0, within_s=FALL_S)
    report("from an empty queue to no workers", started)


def test_without_a_planner_there_are_as_many_workers_as_without_an_autoscaler(
    cluster: OneNode, system: Installed
) -> None:
    wait_for_workers(cluster, 0, within_s=FALL_S)
    started = time.monotonic()
    cluster.kubectl.run("scale", "deployment/noetl-planner", "-n", NAMESPACE, "--replicas=0")
    wait_for_workers(cluster, FALLBACK, within_s=RISE_S)
    report("from no planner to the fallback", started)
    cluster.kubectl.run("scale", "deployment/noetl-planner", "-n", NAMESPACE, "--replicas=1")
    wait_for_workers(cluster, 0, within_s=FALL_S)


def wait_for_workers(cluster: OneNode, count: int, *, within_s: float) -> None:
    wait_until(lambda: count_workers(cluster) == count, timeout_s=within_s, what=f"{count} workers")


def count_workers(cluster: OneNode) -> int:
    found: Any = cluster.kubectl.get("statefulset", WORKERS, namespace=NAMESPACE)
    return int(found["spec"]["replicas"])


def report(what: str, started: float) -> None:
    """Print a figure for the table of the docs; nothing depends on it."""
    sys.stdout.write(f"{what}: {time.monotonic() - started:.0f} s\n")
