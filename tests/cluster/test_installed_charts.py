"""The charts on a real cluster: installed, tested, used, upgraded, rolled back and removed."""

import re
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from tests.support import charts
from tests.support.cluster import installed
from tests.support.cluster.installed import Installed
from tests.support.cluster.kubectl import KubectlError
from tests.support.cluster.one_node import OneNode
from tests.support.cluster.releases import Releases
from tests.support.cluster.umbrella import build_all_values, open_releases, open_system
from tests.support.two_commits import read_git

SUM = 285
PLAYBOOK = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: squares, path: cluster/squares}
workflow:
  - step: square
    loop: {in: "{{ range(10) | list }}", iterator: number, spec: {mode: parallel}}
    tool:
      kind: python
      input: {number: "{{ iter.number }}"}
      code: "return {'square': int(number) ** 2}"
    next: {arcs: [{step: end}]}
  - step: end
    tool:
      kind: noop
      result: {total: "{{ square.results | map(attribute='square') | sum }}"}
"""
SEPARATE, WHOLE = "separate", "whole"
WORKER = "noetl-worker-0"
# With it every pod is made anew.
CHANGED = {"extraEnvironment": [{"name": "TZ", "value": "UTC"}]}
VALUES = build_all_values()
NEXT = VALUES | {service: VALUES[service] | CHANGED for service in charts.SERVICES}


@pytest.fixture(scope="module")
def releases(cluster: OneNode) -> Iterator[Releases]:
    opened = open_releases(cluster, WHOLE)
    yield opened
    cluster.kubectl.run("delete", "namespace", WHOLE, "--wait=false")


@pytest.fixture(scope="module")
def system(cluster: OneNode, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return open_system(cluster, tmp_path_factory.mktemp("whole"), WHOLE)


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The charts as they were before a branch last changed them; within one they may be broken."""
    log = read_git("log", "--first-parent", "-n", "2", "--format=%H", "--", "deploy/helm")
    commits = log.decode().split()
    if len(commits) < 2:
        pytest.skip("this clone has no charts of before: git fetch --unshallow")
    packed = read_git("archive", commits[1], "deploy")
    source = tmp_path_factory.mktemp("older-source")
    with tarfile.open(fileobj=BytesIO(packed)) as archive:
        archive.extractall(source, filter="data")
    return charts.copy_charts(tmp_path_factory.mktemp("older"), source=source / "deploy/helm")


def check_run(system: Installed) -> None:
    execution = system.run_playbook(PLAYBOOK)
    match = re.search(r"total\W+(\d+)", system.noetl("result", execution, "end"))
    assert match
    assert int(match[1]) == SUM


def test_each_chart_is_a_release_of_its_own(cluster: OneNode, folder: Path, tmp_path: Path) -> None:
    releases = open_releases(cluster, SEPARATE)
    names = ("platform", *charts.SERVICES)
    for chart in names:
        releases.install(folder / chart, chart, VALUES[chart])
    for chart in charts.SERVICES:
        releases.run_tests(chart)
    system = open_system(cluster, tmp_path, SEPARATE, planner="planner-planner")
    check_run(system)
    for chart in reversed(names):
        releases.uninstall(chart)
    assert installed.wait_until_gone(cluster.kubectl, SEPARATE) == set()
    cluster.kubectl.run("delete", "namespace", SEPARATE, "--wait=false")


def test_the_umbrella_goes_forward_and_back(
    releases: Releases, system: Installed, older: Path, folder: Path
) -> None:
    releases.install(older / charts.UMBRELLA, "noetl", VALUES)
    check_run(system)
    releases.upgrade(folder / charts.UMBRELLA, "noetl", NEXT)
    check_run(system)
    releases.run_tests("noetl")
    releases.roll_back("noetl", 1)
    check_run(system)
    releases.upgrade(folder / charts.UMBRELLA, "noetl", NEXT)
    check_run(system)


def test_no_service_of_ours_becomes_a_setting(cluster: OneNode, releases: Releases) -> None:
    """A pod that starts beside a Service called noetl-planner is told nothing of it."""
    cluster.kubectl.get("service", "noetl-planner", namespace=WHOLE)
    assert restart_worker(cluster)["NOETL_WORKER_INSTANCE"] == WORKER
    environ = read_environ(cluster)
    assert [name for name in environ if re.search(r"NOETL_.*_SERVICE_(HOST|PORT)", name)] == []


def test_a_worker_comes_back_under_its_name(
    cluster: OneNode, releases: Releases, system: Installed
) -> None:
    before = cluster.kubectl.get("pod", WORKER, namespace=WHOLE)
    environ = restart_worker(cluster)
    after = cluster.kubectl.get("pod", WORKER, namespace=WHOLE)
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert environ["NOETL_WORKER_INSTANCE"] == WORKER
    assert environ["NOETL_WORKER_NODE"] == after["spec"]["nodeName"]
    check_run(system)


def test_budgets_and_policies_select_the_pods_that_run(
    cluster: OneNode, releases: Releases
) -> None:
    pods = cluster.kubectl.list_objects("pods", namespace=WHOLE)
    for kind, path in (("poddisruptionbudgets", "selector"), ("networkpolicies", "podSelector")):
        objects = cluster.kubectl.list_objects(kind, namespace=WHOLE)
        assert len(objects) == len(charts.SERVICES)
        for item in objects:
            wanted = item["spec"][path]["matchLabels"].items()
            assert any(wanted <= pod["metadata"]["labels"].items() for pod in pods)
    for budget in cluster.kubectl.list_objects("poddisruptionbudgets", namespace=WHOLE):
        assert budget["status"]["currentHealthy"] == budget["status"]["expectedPods"] == 1


def test_a_pod_that_asks_for_more_is_refused_where_ours_run(
    cluster: OneNode, releases: Releases
) -> None:
    pod = {"containers": [{"name": "root", "image": "noetl-debian"}]}
    metadata = {"name": "root", "namespace": WHOLE}
    with pytest.raises(KubectlError, match="violates PodSecurity"):
        cluster.kubectl.apply(
            {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod}
        )


def test_nothing_of_a_removed_release_is_left(cluster: OneNode, releases: Releases) -> None:
    releases.uninstall("noetl")
    assert installed.wait_until_gone(cluster.kubectl, WHOLE) == set()


def restart_worker(cluster: OneNode) -> dict[str, str]:
    """Delete the worker's pod, wait for the next, and read what that one is told."""
    cluster.kubectl.run("delete", "pod", WORKER, "-n", WHOLE)
    ready = ("--for=condition=ready", f"pod/{WORKER}", "--timeout=120s")
    cluster.kubectl.run("wait", "--for=create", f"pod/{WORKER}", "-n", WHOLE, "--timeout=60s")
    cluster.kubectl.run("wait", *ready, "-n", WHOLE)
    return read_environ(cluster)


def read_environ(cluster: OneNode) -> dict[str, str]:
    printed = cluster.kubectl.run("exec", WORKER, "-n", WHOLE, "--", "env")
    return dict(line.split("=", 1) for line in printed.splitlines() if "=" in line)
