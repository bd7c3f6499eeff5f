"""The programs of a cluster: which there are, and why there are none."""

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[3]
BUILT = ROOT / "build/cluster"
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE = ("kubelet", "kube-proxy", "coredns")
PACKAGES = {
    "etcd": "etcd-server",
    "containerd": "containerd",
    "runc": "runc",
    "iptables": "iptables",
}
# Where Debian's containernetworking-plugins are.
NETWORK_PLUGINS = Path("/usr/lib/cni")


def find_obstacle() -> str:
    """Say why no cluster can be started here; empty where one can."""
    if os.geteuid() != 0:
        return "a node needs root"
    if unbuilt := find_unbuilt(*CONTROL_PLANE, *NODE):
        return unbuilt
    for name, package in PACKAGES.items():
        if find_path(name) is None:
            return f"{name} is not installed: apt-get install {package}"
    if not (NETWORK_PLUGINS / "bridge").exists():
        return "no network of pods: apt-get install containernetworking-plugins"
    return ""


def find_unbuilt(*names: str) -> str:
    """Say which program is not built, and how it is; empty where all are."""
    for name in names:
        if not (BUILT / name).exists():
            return f"{name} is not built: make cluster/tools, which needs Go"
    return ""


def find_path(name: str) -> str | None:
    """Find a program that was built here or is installed, in the folders of root too."""
    if (BUILT / name).exists():
        return str(BUILT / name)
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def get_path(name: str) -> str:
    """Find a program, or raise `FileNotFoundError` with its name."""
    if (path := find_path(name)) is None:
        raise FileNotFoundError(f"{name} is neither built nor installed")
    return path
