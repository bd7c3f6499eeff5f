"""Requests to the API server, by Debian's or anybody's kubectl."""

import subprocess
from pathlib import Path
from typing import Any

import msgspec
from tests.support.cluster import programs

COMMAND_S = 180.0


class KubectlError(Exception):
    """The API server refused; the text is its own."""


class Kubectl:
    """Runs kubectl as one user."""

    def __init__(self, config: Path) -> None:
        self.config = config

    def run(self, *arguments: str, given: str | None = None, timeout_s: float = COMMAND_S) -> str:
        """Run a command and return what it printed; raise `KubectlError` when it failed."""
        done = subprocess.run(  # noqa: S603 - kubectl with arguments of a test
            [programs.get_path("kubectl"), f"--kubeconfig={self.config}", *arguments],
            check=False,
            capture_output=True,
            text=True,
            input=given,
            timeout=timeout_s,
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}")
        return done.stdout

    def apply(self, *manifests: Any, server_side: bool = False) -> None:
        """Apply manifests, each a mapping."""
        text = "\n---\n".join(msgspec.json.encode(manifest).decode() for manifest in manifests)
        side = ["--server-side", "--force-conflicts"] if server_side else []
        self.run("apply", *side, "-f", "-", given=text)

    def get(self, kind: str, name: str, *, namespace: str = "default") -> Any:
        """Read one object."""
        return msgspec.json.decode(self.run("get", kind, name, "-n", namespace, "-o", "json"))

    def list_objects(
        self, kind: str, *, namespace: str | None = None, labels: str = ""
    ) -> list[Any]:
        """List the objects of a kind."""
        place = ["-A"] if namespace is None else ["-n", namespace]
        chosen = [f"--selector={labels}"] if labels else []
        return list(
            msgspec.json.decode(self.run("get", kind, *place, *chosen, "-o", "json"))["items"]
        )
