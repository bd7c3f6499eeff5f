"""Containers on Docker, or on what answers as Docker does."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, BinaryIO

import aiohttp
import msgspec

from noetl_chassis.blocking_work import run_in_thread
from noetl_contracts import codec
from noetl_contracts.log_chunks import STDERR, STDOUT
from noetl_worker.domain.failures import ToolFailure, build_disk_full_error
from noetl_worker.tools.container.api_refusal import CONFLICT, NOT_FOUND
from noetl_worker.tools.container.archive import WorkFiles, write_archive
from noetl_worker.tools.container.docker_api import (
    DockerApi,
    DockerRefusal,
)
from noetl_worker.tools.container.names import (
    DEADLINE_LABEL,
    MANAGED_LABEL,
    OWNER_LABEL,
    WORK_FOLDER,
)
from noetl_worker.tools.container.runtime import (
    ContainerEnd,
    ContainerRecord,
    ContainerSpec,
    StartedContainer,
    build_evicted_failure,
    build_login_failure,
    build_memory_failure,
    build_start_failure,
    build_too_large_failure,
)

_TEMPORARY_BYTES = 256 * 1024**2
_PROCESSES_MAX, _FILES_MAX, _FILE_BYTES = 512, 1024, 4 * 1024**3
_READ_BYTES = 256 * 1024
_HEADER_BYTES = 8
_STREAMS = {1: STDOUT, 2: STDERR}
_CPU_NANOS = 1_000_000_000
_NO_NETWORK = "none"
# A daemon that is started anew answers again soon.
_WAIT_TRIES_MAX = 10
_WAIT_PAUSE_S = 3.0
_REPLACE_TRIES_MAX = 5
_REPLACE_PAUSE_S = 1.0
# What registries answer for images that are not there, or not for everybody.
_REFUSED_PULL_WORDS = ("denied", "unauthorized", "no basic auth credentials")
_LASTING_PULL_WORDS = ("not found", "manifest unknown", *_REFUSED_PULL_WORDS)
_LOGIN_HEADER = "X-Registry-Auth"
# What runc says when not even the start of a program has room.
_MEMORY_WORD = "oom-killed"
_KILLED = 137
_MEMORY_LOOKS_MAX, _MEMORY_PAUSE_S = 3, 0.2
_LIST_FILTER = codec.encode_text({"label": [MANAGED_LABEL]})


class DockerRuntime:
    """Runs containers over Docker's API; nothing of the host is given to them."""

    def __init__(self, api: DockerApi, *, network: str) -> None:
        """Containers that may use the network are put into `network`."""
        self._api = api
        self._network = network
        # The output of containers that nobody follows yet.
        self._outputs: dict[str, tuple[AsyncExitStack, aiohttp.ClientResponse]] = {}

    async def start_container(
        self, spec: ContainerSpec, files: WorkFiles, tell: Callable[[str], None]
    ) -> StartedContainer:
        """Create a container, give it its files, and start it; raises `ToolFailure`."""
        container_id = await self._create_container(spec, tell)
        path = f"/containers/{container_id}"
        try:
            with tempfile.TemporaryFile() as archive_file:
                await run_in_thread(write_archive, archive_file, files, user=spec.user)
                query = {"path": WORK_FOLDER}
                await self._api.send_request(
                    "PUT", f"{path}/archive", query=query, body=archive_file, seconds=None
                )
            await self._open_output(container_id)
            await self._api.send_request("POST", f"{path}/start")
        except DockerRefusal as refusal:
            if await self._is_gone(container_id):
                raise _build_removed_failure(spec.name) from refusal
            await self.remove_container(container_id, grace_s=0)
            raise _build_start_failure(refusal, spec) from refusal
        except BaseException:
            await asyncio.shield(self.remove_container(container_id, grace_s=0))
            raise
        return StartedContainer(container_id=container_id, name=spec.name)

    async def follow_logs(self, container: StartedContainer) -> AsyncIterator[tuple[str, bytes]]:
        """Yield what a container writes until it ends; raises `ToolFailure`."""
        stack, response = self._outputs.pop(container.container_id)
        content = response.content
        async with stack:
            while True:
                try:
                    header = await content.readexactly(_HEADER_BYTES)
                except asyncio.IncompleteReadError:
                    return
                bytes_left = int.from_bytes(header[4:], "big")
                while bytes_left and (data := await content.read(min(bytes_left, _READ_BYTES))):
                    bytes_left -= len(data)
                    yield _STREAMS.get(header[0], STDOUT), data

    async def wait_for_end(self, container: StartedContainer) -> ContainerEnd:
        """Return how a container ended; raises `ToolFailure`."""
        path = f"/containers/{container.container_id}"
        tries_left = _WAIT_TRIES_MAX
        while True:
            try:
                await self._api.send_request("POST", f"{path}/wait", seconds=None)
                state = (await self._api.send_request("GET", f"{path}/json"))["State"]
            except DockerRefusal as refusal:
                if refusal.status == NOT_FOUND:
                    raise _build_removed_failure(container.name) from refusal
                raise refusal.build_failure("to wait for the container") from refusal
            except ToolFailure:
                if not tries_left:
                    raise
                tries_left -= 1
                await asyncio.sleep(_WAIT_PAUSE_S)
                continue
            tries_left = _WAIT_TRIES_MAX
            if state.get("Status") not in ("running", "paused", "restarting"):
                return await self._read_end(path, state)

    async def collect_files(
        self, container: StartedContainer, target: BinaryIO, *, bytes_max: int
    ) -> bool:
        """Write what the container's folder holds to `target`; raises `ToolFailure`."""
        path = f"/containers/{container.container_id}/archive"
        size_bytes = 0
        try:
            async with self._api.stream_response(
                "GET", path, query={"path": WORK_FOLDER}
            ) as response:
                async for data in response.content.iter_chunked(1024 * 1024):
                    size_bytes += len(data)
                    if size_bytes > bytes_max:
                        raise build_too_large_failure(bytes_max)
                    await _write_data(target, data)
        except DockerRefusal as refusal:
            raise refusal.build_failure("the container's files") from refusal
        return True

    async def remove_container(self, container_id: str, *, grace_s: float) -> None:
        """End a container with SIGTERM, after `grace_s` with SIGKILL, and remove it."""
        path = f"/containers/{container_id}"
        if container_id in self._outputs:
            await self._outputs.pop(container_id)[0].aclose()
        try:
            if grace_s > 0:
                seconds = str(max(1, round(grace_s)))
                await self._api.send_request("POST", f"{path}/stop", query={"t": seconds})
            await self._api.send_request("DELETE", path, query={"force": "true", "v": "true"})
        except DockerRefusal as refusal:
            # Somebody else removes it, or has done so.
            if refusal.status not in (NOT_FOUND, CONFLICT):
                raise refusal.build_failure("to remove the container") from refusal

    async def list_containers(self) -> list[ContainerRecord]:
        """List the containers that workers have started; raises `ToolFailure`."""
        query = {"all": "true", "filters": _LIST_FILTER}
        try:
            container_descriptions = await self._api.send_request(
                "GET", "/containers/json", query=query
            )
        except DockerRefusal as refusal:
            raise refusal.build_failure("to list containers") from refusal
        return [_parse_record(container) for container in container_descriptions]

    async def close(self) -> None:
        """Close connections."""
        await self._api.close()

    async def _read_end(self, path: str, state: dict[str, Any]) -> ContainerEnd:
        """Read how a container ended; Docker notes that memory was short a moment later."""
        end = _parse_state(state)
        for _ in range(_MEMORY_LOOKS_MAX):
            if end.exit_code != _KILLED or end.is_out_of_memory:
                break
            await asyncio.sleep(_MEMORY_PAUSE_S)
            try:
                end = _parse_state((await self._api.send_request("GET", f"{path}/json"))["State"])
            except DockerRefusal:
                break
        return end

    async def _open_output(self, container_id: str) -> None:
        """Attach to a container before it starts: what Docker's own log has may lack the end."""
        query = {"stream": "true", "stdout": "true", "stderr": "true"}
        async with AsyncExitStack() as stack:
            response = await stack.enter_async_context(
                self._api.stream_response("POST", f"/containers/{container_id}/attach", query=query)
            )
            self._outputs[container_id] = (stack.pop_all(), response)

    async def _is_gone(self, container_id: str) -> bool:
        """Tell whether somebody else has removed a container, or is about to."""
        try:
            description = await self._api.send_request("GET", f"/containers/{container_id}/json")
        except DockerRefusal as refusal:
            return refusal.status == NOT_FOUND
        return description["State"].get("Status") in ("removing", "dead")

    async def _create_container(self, spec: ContainerSpec, tell: Callable[[str], None]) -> str:
        """Create a container of an image that is fetched if it is missing."""
        body = build_create_body(spec, network=self._network)
        has_pulled = False
        for _ in range(_REPLACE_TRIES_MAX):
            try:
                created = await self._api.send_request(
                    "POST", "/containers/create", query={"name": spec.name}, body=body
                )
            except DockerRefusal as refusal:
                if refusal.status == CONFLICT:
                    tell(
                        f"container {spec.name} of an earlier delivery of this attempt is removed: "
                        "the attempt runs anew"
                    )
                    await self.remove_container(spec.name, grace_s=0)
                    await asyncio.sleep(_REPLACE_PAUSE_S)
                elif refusal.status == NOT_FOUND and not has_pulled:
                    tell(f"image {spec.image} is fetched")
                    await self._pull_image(spec)
                    has_pulled = True
                else:
                    raise _build_start_failure(refusal, spec) from refusal
            else:
                container_id: str = created["Id"]
                return container_id
        text = f"container {spec.name} of an earlier delivery of this attempt cannot be removed"
        raise build_start_failure(text)

    async def _pull_image(self, spec: ContainerSpec) -> None:
        """Fetch an image, as the user of its registry that the task names; raises `ToolFailure`."""
        image, login = spec.image, spec.registry
        name, tag = _split_tag(image)
        headers = {_LOGIN_HEADER: login.encode_header()} if login else {}
        query = {"fromImage": name} | ({"tag": tag} if tag else {})
        problem = ""
        try:
            async with self._api.stream_response(
                "POST", "/images/create", query=query, headers=headers
            ) as response:
                async for line in response.content:
                    problem = _find_pull_problem(line) or problem
        except DockerRefusal as refusal:
            problem = refusal.message
        if problem and login and any(word in problem.lower() for word in _REFUSED_PULL_WORDS):
            raise build_login_failure(image, login, problem)
        if problem:
            is_lasting = any(word in problem.lower() for word in _LASTING_PULL_WORDS)
            text = (
                f"image {image} cannot be fetched: {problem}; check its name and tag, name a "
                "credential of its registry in 'auth', or put it on the machine with `docker pull` "
                "or `docker build`"
            )
            raise build_start_failure(text, is_lasting=is_lasting)


def build_create_body(spec: ContainerSpec, *, network: str) -> dict[str, Any]:
    """Describe a container: no right beyond its own folder, nothing of the host."""
    resources = spec.resources
    body: dict[str, Any] = {
        "Image": spec.image,
        "Env": [f"{name}={value}" for name, value in {"HOME": "/tmp", **spec.environ}.items()],  # noqa: S108 - inside the container
        "Labels": dict(spec.labels),
        "WorkingDir": WORK_FOLDER,
        "User": spec.user,
        "HostConfig": {
            "Memory": resources.memory_bytes,
            # No swap: a container that needs more ends, and says so.
            "MemorySwap": resources.memory_bytes,
            "NanoCpus": int(resources.cpus * _CPU_NANOS),
            "PidsLimit": _PROCESSES_MAX,
            "Ulimits": [
                {"Name": "nofile", "Soft": _FILES_MAX, "Hard": _FILES_MAX},
                {"Name": "fsize", "Soft": _FILE_BYTES, "Hard": _FILE_BYTES},
                {"Name": "core", "Soft": 0, "Hard": 0},
            ],
            "NetworkMode": network if spec.has_network else _NO_NETWORK,
            "ReadonlyRootfs": True,
            "Privileged": False,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "IpcMode": "private",
            "Mounts": [{"Type": "volume", "Target": WORK_FOLDER}],
            "Tmpfs": {"/tmp": f"rw,nosuid,nodev,size={_TEMPORARY_BYTES},mode=1777"},  # noqa: S108 - inside the container
            "RestartPolicy": {"Name": "no"},
            # The worker takes the output while it is written.
            "LogConfig": {"Type": "none", "Config": {}},
        },
    }
    if spec.command:
        body["Entrypoint"] = list(spec.command)
    if spec.args or spec.command:
        body["Cmd"] = list(spec.args)
    return body


def _build_removed_failure(name: str) -> ToolFailure:
    return build_evicted_failure(
        f"container {name} was removed before its end, and not by its task: by hand, or as its "
        "attempt was delivered to another worker"
    )


def _build_start_failure(refusal: DockerRefusal, spec: ContainerSpec) -> ToolFailure:
    """Say why Docker starts no container of a task; what it says of a program lasts."""
    if _MEMORY_WORD in refusal.message.lower():
        return build_memory_failure(spec.resources.memory_bytes)
    is_lasting = refusal.status in (400, NOT_FOUND)
    text = f"container of image {spec.image} cannot be started: {refusal.message}"
    return build_start_failure(text, is_lasting=is_lasting)


def _parse_state(state: dict[str, Any]) -> ContainerEnd:
    code = int(state.get("ExitCode", -1))
    return ContainerEnd(
        exit_code=code,
        is_out_of_memory=bool(state.get("OOMKilled")),
        started_at=str(state.get("StartedAt", "")),
        finished_at=str(state.get("FinishedAt", "")),
    )


def _parse_record(container: dict[str, Any]) -> ContainerRecord:
    labels = container.get("Labels") or {}
    deadline = str(labels.get(DEADLINE_LABEL, ""))
    return ContainerRecord(
        container_id=container["Id"],
        name=next(iter(container.get("Names") or [container["Id"]])).lstrip("/"),
        owner=labels.get(OWNER_LABEL, ""),
        deadline_s=int(deadline) if deadline.isdigit() else 0,
    )


def _split_tag(image: str) -> tuple[str, str]:
    """Split a name for the API of pulls; a digest stays with the name."""
    if "@" in image:
        return image, ""
    name, _, tag = image.rpartition(":")
    return name, tag


def _find_pull_problem(line: bytes) -> str:
    try:
        progress = codec.decode_json(line)
    except msgspec.DecodeError:
        return ""
    return str(progress.get("error") or "") if isinstance(progress, dict) else ""


async def _write_data(target: BinaryIO, data: bytes) -> None:
    try:
        await run_in_thread(target.write, data)
    except OSError as problem:
        raise ToolFailure(build_disk_full_error(problem)) from problem
