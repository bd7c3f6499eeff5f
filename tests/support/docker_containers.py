"""Docker as tests of container tasks use it, over its API alone.

`python -m tests.support.docker_containers VISIT` runs a container that sleeps until it is killed.
"""

import asyncio
import random
import sys
from typing import Any

from msgspec import structs
from tests.support.calls import call_of
from tests.support.working import bench

from noetl_chassis.clock import SystemClock
from noetl_worker.domain.failures import ToolFailure
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.container.docker_api import DockerApi, DockerRefusal
from noetl_worker.tools.container.docker_runtime import DockerRuntime
from noetl_worker.tools.container.names import MANAGED_LABEL
from noetl_worker.tools.container.orphan_sweep import OrphanSweep

IMAGE = "noetl-debian"
SOCKET = "unix:///var/run/docker.sock"
SETTINGS: dict[str, Any] = {"containers": "docker", "container_images": (IMAGE,)}


def find_obstacle() -> str:
    """Say why containers cannot be run here; empty where they can."""
    return asyncio.run(_find_obstacle())


async def _find_obstacle() -> str:
    try:
        await ask_docker("GET", f"/images/{IMAGE}/json")
    except ToolFailure as problem:
        return problem.error.message
    except DockerRefusal:
        return f"the image {IMAGE} is not built: make images/bases"
    return ""


async def ask_docker(method: str, path: str, **query: str) -> Any:
    """Send one request."""
    api = DockerApi(SOCKET)
    try:
        return await api.send_request(method, path, query=query)
    finally:
        await api.close()


async def list_names() -> set[str]:
    """List the containers of workers that are there, running or not."""
    found = await ask_docker(
        "GET", "/containers/json", all="true", filters=f'{{"label":["{MANAGED_LABEL}"]}}'
    )
    return {name.lstrip("/") for one in found for name in one["Names"]}


async def sweep_as_another_worker() -> int:
    """Remove what killed workers have left, as any worker does again and again."""
    runtime = DockerRuntime(DockerApi(SOCKET), network="bridge")
    try:
        sweep = OrphanSweep(runtime, owner="elsewhere:/folder", clock=SystemClock())
        return await sweep.sweep_containers()
    finally:
        await runtime.close()


def shell_of(line: str, *, timeout_s: float = 60, **fields: Any) -> Call:
    """A container of the image that runs a line of its shell."""
    fields = {"image": IMAGE, "command": ["sh", "-c"], "args": [line], **fields}
    # The name of its container is nobody else's, in no other process of the tests.
    return structs.replace(
        call_of("container", fields, timeout_s=timeout_s), visit=random.getrandbits(48)
    )


def name_of(call: Call) -> str:
    """The name of the container of a call."""
    return f"noetl-{call.attempt_key.removeprefix('sha256:')[:32]}"


def fixed_call(script: str, visit: int) -> Call:
    """A call whose container has the same name in every process."""
    return structs.replace(shell_of(script, timeout_s=600), visit=visit)


async def _run(visit: int) -> None:
    async with bench(**SETTINGS) as worker:
        await worker.tools.run(fixed_call("sleep 600", visit))


if __name__ == "__main__":
    asyncio.run(_run(int(sys.argv[1])))
