"""What a session on Kubernetes is started with: its executors are pods of their own.

The driver stays in the worker's process. Executors have to reach it, and get their keys from a
Secret: neither Spark's settings nor its listings hold one.
"""

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from noetl_contracts import codec

SCHEME = "k8s://"
TEMPLATE_SETTING = "spark.kubernetes.executor.podTemplateFile"
_TEMPLATE_FILE = "executor.json"
# What a namespace may demand of every pod. Executors run what an author wrote, and ask no API.
_TEMPLATE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "spec": {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "executor",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
            }
        ],
    },
}
_SETTING = "NOETL_WORKER_SPARK_"
_IMAGE, _HOST = "spark.kubernetes.container.image", "spark.driver.host"
_EXECUTOR_IMAGE = "spark.kubernetes.executor.container.image"


class Kubernetes(Struct, frozen=True, kw_only=True):
    """Where executors become pods, of which image, and how they reach the driver.

    `variables` are what executors need of this worker's environment and may be seen by all;
    `secret_keys` says which variable comes from which key of the Secret `secret`.
    """

    image: str = ""
    namespace: str = "default"
    service_account: str = ""
    executors: int = 2
    driver_host: str = ""
    driver_pod: str = ""
    driver_port: int = 7078
    secret: str = ""
    variables: Mapping[str, str] = {}
    secret_keys: Mapping[str, str] = {}


def is_kubernetes(master: str) -> bool:
    """Tell whether executors are to be pods."""
    return master.startswith(SCHEME)


def build_kubernetes_settings(kubernetes: Kubernetes) -> dict[str, str]:
    """Return Spark's settings for a driver in a worker's process; what is empty is left out."""
    spark_settings = {
        _IMAGE: kubernetes.image,
        "spark.kubernetes.namespace": kubernetes.namespace,
        "spark.kubernetes.authenticate.executor.serviceAccountName": kubernetes.service_account,
        # Kubernetes then removes the executors' pods with the worker's.
        "spark.kubernetes.driver.pod.name": kubernetes.driver_pod,
        "spark.executor.instances": str(kubernetes.executors),
        _HOST: kubernetes.driver_host,
        "spark.driver.bindAddress": "0.0.0.0",  # noqa: S104 - executors are on other machines
        # Else executors are sent to the address that was bound, which is nobody's.
        "spark.kubernetes.executor.useDriverPodIP": "false",
        "spark.driver.port": str(kubernetes.driver_port),
        "spark.driver.blockManager.port": str(kubernetes.driver_port + 1),
    }
    spark_settings |= {
        f"spark.executorEnv.{name}": value for name, value in kubernetes.variables.items()
    }
    if kubernetes.secret:
        spark_settings |= {
            f"spark.kubernetes.executor.secretKeyRef.{name}": f"{kubernetes.secret}:{key}"
            for name, key in kubernetes.secret_keys.items()
        }
    return {name: value for name, value in spark_settings.items() if value}


def write_pod_template(folder: Path) -> None:
    """Write the walls around executors into the driver's folder, where Spark reads them."""
    find_pod_template(folder).write_bytes(codec.encode_json(_TEMPLATE))


def find_pod_template(folder: Path) -> Path:
    """Return the file that says what every executor's pod has; the operator may name another."""
    return folder / _TEMPLATE_FILE


def list_missing_settings(kubernetes: Kubernetes, conf: Mapping[str, str]) -> list[str]:
    """List what executors cannot be started without; `conf` is the operator's own."""
    missing_settings = []
    if not (kubernetes.image or conf.get(_IMAGE) or conf.get(_EXECUTOR_IMAGE)):
        missing_settings.append(f"{_SETTING}IMAGE, the image of executors")
    if not (kubernetes.driver_host or conf.get(_HOST)):
        missing_settings.append(
            f"{_SETTING}DRIVER_HOST, the address at which they reach this worker"
        )
    return missing_settings
