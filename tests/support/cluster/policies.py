"""Network policies enforced on the node: kube-router's firewall, beside kube-proxy."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.cluster import programs
from tests.support.cluster.control_plane import ADMINS, SERVICE_RANGE
from tests.support.cluster.host_process import HostProcess
from tests.support.cluster.node import NAME, Node

PROGRAM = "kube-router"
# What kube-router names its own; those of kube-proxy begin otherwise.
CHAINS = ("KUBE-ROUTER-", "KUBE-POD-FW-", "KUBE-NWPLCY-")
SETS = ("KUBE-SRC-", "KUBE-DST-")
READY_S = 60.0


def find_obstacle() -> str:
    """Say why no policy can be enforced here; empty where they can."""
    if unbuilt := programs.find_unbuilt(PROGRAM):
        return unbuilt
    if programs.find_path("ipset") is None:
        return "ipset is not installed: apt-get install ipset"
    return ""


@contextmanager
def enforce_policies(node: Node) -> Iterator[None]:
    """Enforce the cluster's policies while the block runs."""
    config = node.plane.authority.write_config(
        PROGRAM, node.plane.server, user=PROGRAM, group=ADMINS
    )
    router = HostProcess(
        PROGRAM,
        [
            programs.get_path(PROGRAM),
            f"--kubeconfig={config}",
            f"--hostname-override={NAME}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--run-firewall=true",
            "--run-router=false",
            "--run-service-proxy=false",
            "--enable-cni=false",
            "--health-port=0",
            "--iptables-sync-period=5s",
        ],
        folder=node.folder,
    )
    try:
        router.wait_until(_has_chains, timeout_s=READY_S, what="pods have chains of rules")
        yield
        if not router.is_running():
            raise RuntimeError(f"{PROGRAM} has ended: {router.read_log()}")
    finally:
        router.stop()
        _remove_rules()


def _has_chains() -> bool:
    return f":{CHAINS[1]}" in _run("iptables-save", "-t", "filter")


def _remove_rules() -> None:
    """Remove what kube-router leaves; its own way of cleaning up removes no rule."""
    rules = _run("iptables-save", "-t", "filter").splitlines(keepends=True)
    others = [rule for rule in rules if not any(chain in rule for chain in CHAINS)]
    _run("iptables-restore", given="".join(others))
    for name in _run("ipset", "list", "-name").split():
        if name.startswith(SETS):
            _run("ipset", "destroy", name)


def _run(program: str, *arguments: str, given: str | None = None) -> str:
    return subprocess.run(  # noqa: S603 - rules of a test
        [programs.get_path(program), *arguments],
        check=True,
        capture_output=True,
        text=True,
        input=given,
    ).stdout
