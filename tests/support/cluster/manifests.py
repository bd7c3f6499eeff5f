"""Manifests of what stands beside the charts."""

import base64
from pathlib import Path
from typing import Any

MOUNTS = (
    {"name": "settings", "mountPath": "/etc/noetl"},
    {"name": "environment", "mountPath": "/run/noetl"},
)
VOLUMES = (
    {"name": "settings", "configMap": {"name": "settings"}},
    {"name": "environment", "secret": {"secretName": "environment-file"}},
)


def build_namespace(name: str, **labels: str) -> Any:
    """Build a namespace."""
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def build_secret(name: str, namespace: str, values: dict[str, str]) -> Any:
    """Build a Secret."""
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}


def build_settings(namespace: str, environment: dict[str, str], *files: Path) -> list[Any]:
    """Build what `MOUNTS` shows: files of the repository, and variables as compose has them."""
    lines = "".join(f"{key}='{value}'\n" for key, value in environment.items())
    metadata = {"name": "settings", "namespace": namespace}
    texts = {path.name: path.read_text(encoding="utf-8") for path in files}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": texts},
        build_secret("environment", namespace, environment),
        build_secret("environment-file", namespace, {"environment": lines}),
    ]


def build_probe(*command: str) -> Any:
    """Build a probe by a command."""
    return {"exec": {"command": list(command)}, "periodSeconds": 2, "timeoutSeconds": 5}


def build_server(
    name: str, *, namespace: str, image: str, ports: tuple[int, ...], **container: Any
) -> list[Any]:
    """Build a server of one pod, whose data end with it, and its Service."""
    labels = {"app": name}
    metadata = {"name": name, "namespace": namespace}
    first = {
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "volumeMounts": [*MOUNTS, {"name": "data", "mountPath": "/data"}],
        **container,
    }
    pod = {
        "enableServiceLinks": False,
        "containers": [first],
        "volumes": [*VOLUMES, {"name": "data", "emptyDir": {}}],
    }
    template = {"metadata": {"labels": labels}, "spec": pod}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata,
            "spec": {"selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "selector": labels,
                "ports": [{"name": f"p{port}", "port": port} for port in ports],
            },
        },
    ]
