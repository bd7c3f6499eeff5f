"""KEDA's own operator and metrics adapter as pods, from its own manifests."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml
from tests.support.cluster import programs
from tests.support.cluster.kubectl import Kubectl
from tests.support.cluster.node import Node
from tests.support.cluster.programs import BUILT

PROGRAMS = ("keda-operator", "keda-adapter")
IMAGE = "noetl-keda:1"
CONFIG = BUILT / "keda-config"
FILES = (
    "general/namespace.yaml",
    "service_account/service_account.yaml",
    "rbac/role.yaml",
    "rbac/role_binding.yaml",
    "manager/manager.yaml",
    "manager/service.yaml",
    "metrics-server/role.yaml",
    "metrics-server/role_binding.yaml",
    "metrics-server/deployment.yaml",
    "metrics-server/service.yaml",
    "metrics-server/api_service.yaml",
)
# It asks for its pods' user by its own image.
USER = 10001
READY = "300s"


def find_obstacle() -> str:
    """Say why nothing scales here; empty where KEDA was built."""
    return programs.find_unbuilt(*PROGRAMS)


def install_keda(node: Node, kubectl: Kubectl, folder: Path) -> None:
    """Make its image, install it, and wait until the cluster has its metrics."""
    for program in PROGRAMS:
        shutil.copy(BUILT / program, folder / program)
    (folder / "Dockerfile").write_text(
        "FROM noetl-debian\nCOPY keda-operator /keda\nCOPY keda-adapter /keda-adapter\n",
        encoding="utf-8",
    )
    subprocess.run(  # noqa: S603 - an image of the tests
        ["docker", "build", "--quiet", "--tag", IMAGE, str(folder)],  # noqa: S607 - wherever it is
        check=True,
        capture_output=True,
    )
    node.load_image(IMAGE)
    apply_manifests(kubectl)


def apply_manifests(kubectl: Kubectl) -> None:
    """Apply its manifests with the image made here, and wait for its API."""
    kinds = [load for path in (CONFIG / "crd/bases").glob("*.yaml") for load in read_objects(path)]
    kubectl.apply(*kinds, server_side=True)
    kubectl.apply(*(item for file in FILES for item in read_objects(CONFIG / file)))
    for name in ("keda-operator", "keda-metrics-apiserver"):
        kubectl.run(
            "rollout",
            "status",
            f"deployment/{name}",
            "-n",
            "keda",
            f"--timeout={READY}",
            timeout_s=400,
        )
    kubectl.run(
        "wait",
        "--for=condition=Available",
        "apiservice/v1beta1.external.metrics.k8s.io",
        f"--timeout={READY}",
        timeout_s=400,
    )


def read_objects(path: Path) -> list[Any]:
    """Read the objects of a file, with the image of this machine."""
    found = [item for item in yaml.safe_load_all(path.read_text(encoding="utf-8")) if item]
    for item in found:
        if item["kind"] == "Deployment":
            pod = item["spec"]["template"]["spec"]
            pod["securityContext"]["runAsUser"] = USER
            for container in pod["containers"]:
                container |= {"image": IMAGE, "imagePullPolicy": "Never"}
    return found
