"""An installed system as its users see it: the command line against the API in the cluster."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
from tests.support.cluster.kubectl import Kubectl, KubectlError
from tests.support.cluster.servers import Servers
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
        done = subprocess.run(  # noqa: S603 - our own command line
            [sys.executable, "-m", "noetl_cli", *arguments],
            check=False,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            env={
                "PATH": os.defpath,
                "HOME": str(self._folder),
                "NOETL_CONFIG": str(self._folder / "config"),
                "NOETL_SERVER": f"http://{service['spec']['clusterIP']}:8080",
                "NOETL_API_KEY": self._token,
            },
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run_playbook(self, text: str) -> str:
        """Run a playbook to its end, and return the execution."""
        return self._run(text)

    def start_playbook(self, text: str) -> str:
        """Start a playbook, and return the execution at once."""
        return self._run(text, "--detach")

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
