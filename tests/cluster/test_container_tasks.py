"""Container tasks as Jobs of a real cluster: run, out of memory, and killed with their worker."""

import re
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from tests.support.cluster.installed import Installed
from tests.support.cluster.one_node import OneNode
from tests.support.cluster.umbrella import Umbrella, build_all_values, build_api_server_rule
from tests.support.containers import run_docker
from tests.support.servers import wait_until

NAMESPACE, WORKER = "tasks", "noetl-worker-0"
# Of another tag than `latest` a kubelet takes the image that is there.
IMAGE = "noetl-task:1"
TASKS = "app.kubernetes.io/name=noetl-container-task"
PATIENCE_S = 240.0
# As whom every service runs.
USER = 10001
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: count, path: cluster/count}
workload: {pause_s: 0}
workflow:
  - step: count
    tool:
      kind: container
      image: noetl-task:1
      command: [sh, -c]
      args: ["sleep $PAUSE_S; wc -l < in.csv > n; echo \\"{\\\\\\"rows\\\\\\": $(cat n)}\\""]
      env: {PAUSE_S: "{{ workload.pause_s }}"}
      files: [{path: in.csv, content: "a\\nb\\n"}]
      resources: {limits: {memory: 64Mi, cpu: 200m}}
      timeout: 200
"""
TOO_LARGE = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: large, path: cluster/large}
workflow:
  - step: fill
    tool:
      kind: container
      image: noetl-task:1
      command: [sh, -c]
      args: ["head -c 300000000 /dev/zero | tail"]
      resources: {limits: {memory: 32Mi, cpu: 500m}}
      timeout: 200
"""


@pytest.fixture(scope="module")
def system(cluster: OneNode, umbrella: Umbrella) -> Iterator[Installed]:
    """The umbrella in a namespace as strict as Kubernetes knows, its tasks in the same."""
    run_docker("tag", "noetl-debian", IMAGE)
    cluster.node.load_image(IMAGE)
    values = build_all_values()
    values["worker"] |= {
        "containers": {"onKubernetes": True},
        "networkPolicy": build_api_server_rule(cluster),
    }
    values["worker"]["settings"] |= {"containers": "kubernetes", "containerImages": "noetl-task:*"}
    with umbrella.install(NAMESPACE, values) as system:
        yield system


def list_tasks(cluster: OneNode) -> list[Any]:
    return cluster.kubectl.list_objects("pods", namespace=NAMESPACE, labels=TASKS)


def list_running(cluster: OneNode) -> list[str]:
    """List the uids of the task's pods that run now."""
    return [
        pod["metadata"]["uid"] for pod in list_tasks(cluster) if pod["status"]["phase"] == "Running"
    ]


def wait_for_no_tasks(cluster: OneNode) -> None:
    def is_empty() -> bool:
        jobs = cluster.kubectl.list_objects("jobs", namespace=NAMESPACE, labels=TASKS)
        return not jobs and not list_tasks(cluster)

    wait_until(is_empty, timeout_s=PATIENCE_S, what="no Job and no pod of a task is left")


def count_rows(system: Installed, execution: str) -> int:
    shown = system.noetl("result", execution, "count", "--output", "json")
    match = re.search(r'"rows":\s*(\d+)', shown)
    assert match, shown
    return int(match[1])


def test_a_container_task_is_a_job_with_its_files_and_its_result(
    cluster: OneNode, system: Installed
) -> None:
    execution = system.run_playbook(PLAYBOOK)
    assert count_rows(system, execution) == 2
    wait_for_no_tasks(cluster)


def test_a_container_over_its_memory_is_told_as_such(cluster: OneNode, system: Installed) -> None:
    with pytest.raises(AssertionError, match="container_oom"):
        system.run_playbook(TOO_LARGE)
    wait_for_no_tasks(cluster)


def test_the_job_of_a_killed_worker_goes_and_the_next_attempt_makes_its_own(
    cluster: OneNode, system: Installed
) -> None:
    execution = system.start_playbook(PLAYBOOK.replace("pause_s: 0", "pause_s: 45"))
    wait_until(lambda: bool(list_running(cluster)), timeout_s=PATIENCE_S, what="the task runs")
    (first,) = list_running(cluster)
    cluster.kubectl.run("delete", "pod", WORKER, "-n", NAMESPACE, "--force", "--grace-period=0")

    def is_replaced() -> bool:
        running = list_running(cluster)
        return bool(running) and first not in running

    wait_until(is_replaced, timeout_s=PATIENCE_S, what="the next attempt runs in a pod of its own")

    wait_until(
        lambda: system.is_completed(execution), timeout_s=PATIENCE_S, what="the run ends well"
    )
    assert count_rows(system, execution) == 2
    wait_for_no_tasks(cluster)


def test_a_worker_that_outlives_its_pod_gives_its_task_to_the_next_one(
    cluster: OneNode, system: Installed
) -> None:
    execution = system.start_playbook(PLAYBOOK.replace("pause_s: 0", "pause_s: 150"))
    wait_until(lambda: bool(list_running(cluster)), timeout_s=PATIENCE_S, what="the task runs")
    (before,) = list_workers()
    # As where a node does not answer, and somebody deletes its pods from afar.
    with cluster.node.held_kubelet():
        cluster.kubectl.run("delete", "pod", WORKER, "-n", NAMESPACE, "--force", "--grace-period=0")
        wait_until(
            lambda: before not in list_workers(), timeout_s=PATIENCE_S, what="the worker stops"
        )
        assert not system.is_completed(execution)
    wait_until(
        lambda: system.is_completed(execution), timeout_s=PATIENCE_S, what="the run ends well"
    )
    assert count_rows(system, execution) == 2
    wait_for_no_tasks(cluster)


def list_workers() -> list[int]:
    """List the processes of workers in pods, by their ids."""
    return [
        process.pid
        for process in psutil.process_iter(["cmdline", "uids"])
        if "noetl_worker" in (process.info["cmdline"] or ()) and process.info["uids"].real == USER
    ]
