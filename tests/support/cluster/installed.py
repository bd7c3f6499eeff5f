"""An installed system as its users see it: the command line against the API in the cluster."""

from pathlib import Path

import msgspec
from tests.support.cluster.kubectl import Kubectl, KubectlError
from tests.support.cluster.servers import Servers
from tests.support.remote_command_line import run_command_line
from tests.support.servers import wait_until

COMMAND_S = 300.0
GONE_S = 180.0
# What a release makes; Secrets of the user's, and what each namespace has, are not among them.
KINDS = (
    "pods,deployments,statefulsets,services,poddisruptionbudgets,networkpolicies,jobs,"
    "serviceaccounts,roles,rolebindings,persistentvolumeclaims"
)
OF_THE_NAMESPACE = {"serviceaccount/default"}


class Installed:
    """A system in one namespace whose planner's Service has this name."""

    def __init__(
        self, kubectl: Kubectl, servers: Servers, folder: Path, *, namespace: str, planner: str
    ) -> None:
        self._kubectl = kubectl
        self._token = servers.owner_token
        self._folder = folder
        self._namespace = namespace
        self._planner = planner

    def noetl(self, *arguments: str) -> str:
        """Run a verb of the command line; the node reaches a Service by its address."""
        service = self._kubectl.get("service", self._planner, namespace=self._namespace)
        return run_command_line(
            *arguments,
            folder=self._folder,
            server=f"http://{service['spec']['clusterIP']}:8080",
            token=self._token,
            timeout_s=COMMAND_S,
        )

    def run_playbook(self, text: str) -> str:
        """Run a playbook to its end, and return the execution."""
        return self._run(text)

    def start_playbook(self, text: str) -> str:
        """Start a playbook, and return the execution at once."""
        return self._run(text, "--detach")

    def is_completed(self, execution: str) -> bool:
        """Tell whether an execution has ended well; one that failed is an `AssertionError`."""
        status = msgspec.json.decode(self.noetl("status", execution, "--json"))["status"]
        assert status not in {"FAILED", "CANCELLED"}, self.noetl("status", execution)
        return bool(status == "COMPLETED")

    def _run(self, text: str, *flags: str) -> str:
        path = self._folder / "playbook.yaml"
        path.write_text(text, encoding="utf-8")
        printed = self.noetl("run", str(path), "--json", *flags)
        return str(msgspec.json.decode(printed.splitlines()[-1])["execution_id"])


def list_left(kubectl: Kubectl, namespace: str) -> set[str]:
    """List what a release has left in its namespace."""
    names = kubectl.run("get", KINDS, "-n", namespace, "-o", "name").split()
    return set(names) - OF_THE_NAMESPACE


def wait_until_gone(kubectl: Kubectl, namespace: str) -> set[str]:
    """Wait until nothing is left; return what is left when it never goes."""
    try:
        wait_until(
            lambda: not list_left(kubectl, namespace), timeout_s=GONE_S, what="nothing is left"
        )
    except (TimeoutError, KubectlError):
        return list_left(kubectl, namespace)
    return set()
