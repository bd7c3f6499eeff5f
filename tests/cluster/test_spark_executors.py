"""Spark on `k8s://`: executors are pods of the worker's own image, and one of them is killed."""

import re
from collections.abc import Iterator

import pytest
from tests.containers.test_profiles import PLAYBOOK, TOTAL
from tests.support import containers
from tests.support.cluster.installed import Installed
from tests.support.cluster.one_node import OneNode
from tests.support.cluster.umbrella import Umbrella, build_all_values, build_api_server_rule
from tests.support.servers import wait_until

NAMESPACE, WORKER = "spark", "noetl-worker-0"
IMAGE = "noetl-worker-spark:latest"
EXECUTORS = "spark-role=executor"
EXECUTORS_MAX = 2
PATIENCE_S = 300.0
CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.kubernetes.executor.request.cores": "100m",
    "spark.kubernetes.container.image.pullPolicy": "Never",
}


@pytest.fixture(scope="module")
def system(cluster: OneNode, umbrella: Umbrella) -> Iterator[Installed]:
    if obstacle := containers.find_obstacle(images=(IMAGE,), is_composed=False):
        pytest.skip(f'{obstacle} IMAGES="worker-spark"')
    cluster.node.load_image(IMAGE)
    values = build_all_values()
    worker = values["worker"]
    worker["image"] = worker["image"] | {"repository": "noetl-worker-spark"}
    worker["resources"] = {"requests": {"cpu": "20m"}, "limits": {"memory": "3Gi"}}
    worker["spark"] = {"onKubernetes": True}
    worker["networkPolicy"] = build_api_server_rule(cluster)
    worker["settings"] |= {
        "sparkMaster": "k8s://https://kubernetes.default.svc:443",
        "sparkImage": IMAGE,
        "sparkNamespace": NAMESPACE,
        "sparkSecret": "noetl-worker",
        "sparkExecutors": EXECUTORS_MAX,
        "sparkCodeAllowed": True,
        # The store of the cluster starts as that of compose, which gives short-lived keys.
        "sparkKeys": "scoped",
        "sparkConf": ";".join(f"{name}={value}" for name, value in CONF.items()),
    }
    with umbrella.install(NAMESPACE, values) as system:
        yield system


def list_executors(cluster: OneNode) -> list[str]:
    """List the names of the executors' pods that run."""
    return [
        pod["metadata"]["name"]
        for pod in cluster.kubectl.list_objects("pods", namespace=NAMESPACE, labels=EXECUTORS)
        if pod["status"]["phase"] == "Running"
    ]


def check_result(system: Installed, execution: str) -> str:
    """Check what the queries found, and return what the frames said of where they ran."""
    total = system.noetl("result", execution, "end", "--output", "json")
    assert re.search(rf'"total":\s*{TOTAL}\b', total), total
    return system.noetl("result", execution, "spread", "--output", "json")


def test_frames_and_queries_run_on_executors_that_are_pods(
    cluster: OneNode, system: Installed
) -> None:
    hosts = check_result(system, system.run_playbook(PLAYBOOK))
    executors = list_executors(cluster)
    assert len(executors) == EXECUTORS_MAX
    assert [name for name in executors if name in hosts]
    assert WORKER not in hosts


def test_a_run_survives_the_death_of_an_executor(cluster: OneNode, system: Installed) -> None:
    slow = PLAYBOOK.replace("time.sleep(0.5)", "time.sleep(5)").replace(
        "name: spread", "name: slow"
    )
    wait_until(lambda: bool(list_executors(cluster)), timeout_s=PATIENCE_S, what="an executor runs")
    execution = system.start_playbook(slow)

    def has_begun() -> bool:
        return "frame.started" in system.noetl("events", execution, "--json")

    wait_until(has_begun, timeout_s=PATIENCE_S, what="a frame has begun")
    (victim, *_) = list_executors(cluster)
    cluster.kubectl.run("delete", "pod", victim, "-n", NAMESPACE, "--force", "--grace-period=0")

    wait_until(
        lambda: system.is_completed(execution), timeout_s=PATIENCE_S, what="the run ends well"
    )
    assert WORKER not in check_result(system, execution)
    wait_until(
        lambda: len(set(list_executors(cluster)) - {victim}) == EXECUTORS_MAX,
        timeout_s=PATIENCE_S,
        what="another executor took its place",
    )


def test_executors_go_with_their_worker(cluster: OneNode, system: Installed) -> None:
    wait_until(lambda: bool(list_executors(cluster)), timeout_s=PATIENCE_S, what="an executor runs")
    before = set(list_executors(cluster))
    cluster.kubectl.run("delete", "pod", WORKER, "-n", NAMESPACE, "--force", "--grace-period=0")
    wait_until(
        lambda: not before & set(list_executors(cluster)),
        timeout_s=PATIENCE_S,
        what="the executors of the worker that died are gone",
    )
