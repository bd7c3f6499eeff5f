"""Docker as tests use it: whether it is there, the stack of compose, and what a container says."""

import functools
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from tests.support.remote_command_line import run_command_line

ROOT = Path(__file__).parents[2]
SERVICES = ("planner", "worker", "projector", "outbox", "reaper")
# What a first start may take, images built and a machine busy with other tests.
START_S = 180
COMMAND_S = 240.0
NOTHING: Mapping[str, str] = {}


def find_obstacle(*, images: tuple[str, ...] = (), is_composed: bool = True) -> str:
    """Say why containers cannot be tried here; empty where they can."""
    if shutil.which("docker") is None:
        return "Docker is not installed: apt-get install docker.io"
    try:
        run_docker("version", "--format", "{{.Server.Version}}")
        if is_composed:
            run_docker("compose", "version")
    except AssertionError as problem:
        return f"Docker does not answer: {problem}"
    for image in images:
        try:
            run_docker("image", "inspect", image)
        except AssertionError:
            return f"the image {image} is not built: make images"
    return ""


def run_docker(*arguments: str, **environ: str) -> str:
    """Run a command of Docker and return what it printed."""
    done = subprocess.run(  # noqa: S603 - its own command line
        ["docker", *arguments],  # noqa: S607 - wherever it is installed
        check=False,
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        cwd=ROOT,
        env={**os.environ, **environ},
    )
    assert done.returncode == 0, f"docker {' '.join(arguments)}: {done.stdout}{done.stderr}"
    return done.stdout


def inspect_container(name: str) -> dict[str, Any]:
    """Read all that Docker knows of a container."""
    found: list[dict[str, Any]] = msgspec.json.decode(run_docker("inspect", name))
    return found[0]


class ComposedStack:
    """The stack of compose.yaml under a name of its own, and the command line of this machine."""

    def __init__(
        self, folder: Path, *, name: str, port: int, environ: Mapping[str, str] = NOTHING
    ) -> None:
        self.folder = folder
        self.name = name
        self.port = port
        # Variables that a file .env would hold.
        self.environ = environ

    def compose(self, *arguments: str, **environ: str) -> str:
        """Run a command of compose on the files as they are in the repository."""
        given = {**self.environ, **environ}
        return run_docker("compose", "-p", self.name, *arguments, **self._environ(), **given)

    def start(self, *services: str) -> None:
        """Start everything, from images that are there, and wait until all are healthy."""
        wait = ("--wait", "--wait-timeout", str(START_S))
        self.compose("up", "-d", "--no-build", *wait, *services)

    def noetl(self, *arguments: str) -> str:
        """Run a verb of the command line against the composed API."""
        return run_command_line(
            *arguments,
            folder=self.folder,
            server=f"http://127.0.0.1:{self.port}",
            token=self.token,
            timeout_s=COMMAND_S,
        )

    @functools.cached_property
    def token(self) -> str:
        """The owner's token, as the first start made it."""
        return self.read_token()

    def read_token(self) -> str:
        """Ask for the owner's token as the page says."""
        return self.compose("run", "--rm", "-T", "secrets", "token").strip()

    def containers(self, service: str) -> list[str]:
        """List the containers of a service, running or not."""
        return self.compose("ps", "--all", "--quiet", service).split()

    def kill(self, service: str) -> None:
        """Kill the first process of a service's container, as a crash or the kernel would."""
        for container in self.containers(service)[:1]:
            os.kill(inspect_container(container)["State"]["Pid"], 9)

    def _environ(self) -> dict[str, str]:
        return {"NOETL_PORT": str(self.port), "COMPOSE_DISABLE_ENV_FILE": "1"}
