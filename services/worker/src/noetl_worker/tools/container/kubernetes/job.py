"""The objects of a container task on Kubernetes: a Job, and the Secret that it owns."""

import re
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.container.archive import WorkFile
from noetl_worker.tools.container.names import (
    DEADLINE_LABEL,
    KEY_LABEL,
    OWNER_LABEL,
    RESULT_NAME,
    SOURCE,
    WORK_FOLDER,
)
from noetl_worker.tools.container.runtime import ContainerSpec

CONTAINER_NAME = "task"
NAME_LABEL = "app.kubernetes.io/name"
NAME = "noetl-container-task"
NETWORK_LABEL = "noetl.io/network"
# Of a Secret's megabyte, with room for names.
FILES_BYTES_MAX = 900 * 1024
_TTL_MIN_S = 60
_FOLDER_BYTES = "4Gi"
_TEMPORARY_BYTES = "256Mi"
_LABEL_CHARACTERS_MAX = 63
_NO_LABEL = re.compile(r"[^A-Za-z0-9._-]+")
_VARIABLE_KEY, _FILE_KEY = "env", "file"
_MODE_FILE, _MODE_PROGRAM = 0o444, 0o555
_SCRIPT_START = b"#!"
_GRACE_S = 5


def build_job(spec: ContainerSpec, files: Iterable[WorkFile]) -> dict[str, Any]:
    """Describe the Job of a task, which waits until its Secret is there."""
    labels = build_labels(spec)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": spec.name, "labels": labels, "annotations": dict(spec.labels)},
        "spec": {
            "suspend": True,
            # The engine tries again, and counts that.
            "backoffLimit": 0,
            "activeDeadlineSeconds": max(1, round(spec.timeout_s)),
            # The worker removes a Job that it has read; until then it must be there.
            "ttlSecondsAfterFinished": max(_TTL_MIN_S, spec.ttl_s),
            "template": {
                "metadata": {"labels": labels, "annotations": dict(spec.labels)},
                "spec": _build_pod(spec, list(files)),
            },
        },
    }


def build_secret(spec: ContainerSpec, files: Iterable[WorkFile], job: Any) -> dict[str, Any]:
    """Describe what only the container sees: its variables and files. It goes with the Job."""
    data = {
        f"{_VARIABLE_KEY}-{index}": value.encode()
        for index, value in enumerate(spec.environ.values())
    }
    data |= {f"{_FILE_KEY}-{index}": file.content for index, file in enumerate(files)}
    if sum(map(len, data.values())) > FILES_BYTES_MAX:
        text = (
            f"the variables and files of a container on Kubernetes have at most "
            f"{FILES_BYTES_MAX:,} bytes together: let it fetch the data itself"
        )
        raise ToolFailure(build_error("payload_too_large", text, source=SOURCE))
    encoded = {key: b64encode(value).decode() for key, value in data.items()}
    return {**_describe_secret(spec, job, spec.name), "data": encoded}


def build_pull_secret(spec: ContainerSpec, job: Any) -> dict[str, Any] | None:
    """Describe what the image is fetched with; None where the task names nothing."""
    if spec.registry is None:
        return None
    secret = _describe_secret(spec, job, _name_pull_secret(spec))
    data = {".dockerconfigjson": b64encode(spec.registry.encode_config()).decode()}
    return {**secret, "type": "kubernetes.io/dockerconfigjson", "data": data}


def _name_pull_secret(spec: ContainerSpec) -> str:
    return f"{spec.name}-pull"


def _describe_secret(spec: ContainerSpec, job: Any, name: str) -> dict[str, Any]:
    """Describe a Secret that goes with its Job."""
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": spec.name,
        "uid": job["metadata"]["uid"],
        "controller": True,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": build_labels(spec), "ownerReferences": [owner]},
        "immutable": True,
    }


def build_labels(spec: ContainerSpec) -> dict[str, str]:
    """Return labels, cut to what Kubernetes allows; the annotations have them whole."""
    return {
        NAME_LABEL: NAME,
        NETWORK_LABEL: "true" if spec.has_network else "false",
        **{
            name: _shorten_label(value)
            for name, value in spec.labels.items()
            if name not in (KEY_LABEL, OWNER_LABEL, DEADLINE_LABEL)
        },
    }


def _build_pod(spec: ContainerSpec, files: list[WorkFile]) -> dict[str, Any]:
    security: dict[str, Any] = {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if spec.user:
        uid, _, gid = spec.user.partition(":")
        security |= {"runAsUser": int(uid), "runAsGroup": int(gid), "fsGroup": int(gid)}
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": bool(spec.service_account),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": security,
        "containers": [_build_container(spec, files)],
        "volumes": [
            {"name": "work", "emptyDir": {"sizeLimit": _FOLDER_BYTES}},
            {"name": "tmp", "emptyDir": {"sizeLimit": _TEMPORARY_BYTES}},
            {"name": "own", "secret": {"secretName": spec.name, "items": _list_items(files)}},
        ],
    }
    if not files:
        # A volume without items would show the variables as files.
        pod["volumes"].pop()
    if spec.registry:
        pod["imagePullSecrets"] = [{"name": _name_pull_secret(spec)}]
    if spec.service_account:
        pod["serviceAccountName"] = spec.service_account
    return pod


def _build_container(spec: ContainerSpec, files: list[WorkFile]) -> dict[str, Any]:
    limits, requests = spec.resources, spec.requests
    container: dict[str, Any] = {
        "name": CONTAINER_NAME,
        "image": spec.image,
        "workingDir": WORK_FOLDER,
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - inside the container
            *(
                {
                    "name": name,
                    "valueFrom": {
                        "secretKeyRef": {"name": spec.name, "key": f"{_VARIABLE_KEY}-{index}"}
                    },
                }
                for index, name in enumerate(spec.environ)
            ),
        ],
        "resources": {
            "limits": {"memory": str(limits.memory_bytes), "cpu": f"{limits.cpus:g}"},
            "requests": {"memory": str(requests.memory_bytes), "cpu": f"{requests.cpus:g}"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        # Kubernetes gives back what is in this file, up to 4 KiB.
        "terminationMessagePath": f"{WORK_FOLDER}/{RESULT_NAME}",
        "volumeMounts": [
            {"name": "work", "mountPath": WORK_FOLDER},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - inside the container
            *(
                {
                    "name": "own",
                    "mountPath": f"{WORK_FOLDER}/{file.path}",
                    "subPath": f"{_FILE_KEY}-{index}",
                    "readOnly": True,
                }
                for index, file in enumerate(files)
            ),
        ],
    }
    if spec.command:
        container["command"] = list(map(_escape_references, spec.command))
    if spec.args:
        container["args"] = list(map(_escape_references, spec.args))
    return container


def _list_items(files: list[WorkFile]) -> list[dict[str, Any]]:
    return [
        {
            "key": f"{_FILE_KEY}-{index}",
            "path": f"{_FILE_KEY}-{index}",
            "mode": _MODE_PROGRAM if file.content.startswith(_SCRIPT_START) else _MODE_FILE,
        }
        for index, file in enumerate(files)
    ]


def _escape_references(text: str) -> str:
    """Keep `$` for the container's shell: Kubernetes would put variables in its place."""
    return text.replace("$", "$$")


def _shorten_label(value: str) -> str:
    return _NO_LABEL.sub("-", value)[:_LABEL_CHARACTERS_MAX].strip("-._")
