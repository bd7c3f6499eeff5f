"""Containers as Jobs of Kubernetes: one pod each, its variables and files in a Secret."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from noetl_chassis.blocking_work import run_in_thread
from noetl_contracts.log_chunks import STDOUT
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.tools.container.api_refusal import CONFLICT, NOT_FOUND
from noetl_worker.tools.container.archive import WorkFile, WorkFiles, list_files
from noetl_worker.tools.container.kubernetes import job as kubernetes_job
from noetl_worker.tools.container.kubernetes import pod as kubernetes_pod
from noetl_worker.tools.container.kubernetes.api import (
    KubernetesApi,
    KubernetesRefusal,
)
from noetl_worker.tools.container.kubernetes.pod import PodState
from noetl_worker.tools.container.names import DEADLINE_LABEL, OWNER_LABEL, RESULT_NAME, SOURCE
from noetl_worker.tools.container.runtime import (
    ContainerEnd,
    ContainerRecord,
    ContainerSpec,
    StartedContainer,
    WorkerPodGone,
    build_evicted_failure,
    build_start_failure,
)

_POLL_S = 1.0
# A cluster may add a node for a pod.
_SCHEDULE_S = 300.0
_REPLACE_TRIES_MAX = 60
_UNREACHABLE_TRIES_MAX = 20
_UNREACHABLE_PAUSE_S = 3.0
# Of a termination message.
_RESULT_BYTES_MAX = 4096
_LINE_BYTES_MAX = 1024 * 1024
_BACKGROUND = {"propagationPolicy": "Background"}


class WorkerPod(Struct, frozen=True, kw_only=True):
    """The pod of this worker, with which its Jobs go; empty where it is not told."""

    name: str = ""
    uid: str = ""


class KubernetesRuntime:
    """Runs containers as Jobs; files that they leave are not collected."""

    def __init__(self, api: KubernetesApi, *, namespace: str, worker_pod: WorkerPod) -> None:
        """Run Jobs in `namespace`; empty: in that of the worker's account."""
        self._api = api
        self._namespace = namespace
        self._worker_pod = worker_pod

    async def start_container(
        self, spec: ContainerSpec, files: WorkFiles, tell: Callable[[str], None]
    ) -> StartedContainer:
        """Create a Job with its Secret, and return when its container has begun."""
        own_files = await run_in_thread(_select_files, files, tell)
        try:
            job = await self._create_job(spec, own_files, tell)
        except KubernetesRefusal as refusal:
            raise refusal.build_failure("the Job") from refusal
        uid = job["metadata"]["uid"]
        container_id = _build_id(spec.name, uid)
        try:
            secret = kubernetes_job.build_secret(spec, own_files, job)
            await self._create_secret(secret)
            if pull_secret := kubernetes_job.build_pull_secret(spec, job):
                await self._create_secret(pull_secret)
            path = f"jobs/{spec.name}"
            await self._send_request("PATCH", path, body={"spec": {"suspend": False}})
            pod = await self._wait_for_start(spec, uid, tell)
        except KubernetesRefusal as refusal:
            await self.remove_container(container_id, grace_s=0)
            raise refusal.build_failure("the Job's Secret, or its start") from refusal
        except BaseException:
            await asyncio.shield(self.remove_container(container_id, grace_s=0))
            raise
        return StartedContainer(container_id=container_id, name=spec.name, pod=pod)

    async def _create_secret(self, body: dict[str, Any]) -> None:
        """Create the Secret of a Job; that of an earlier delivery goes a while after its Job."""
        for _ in range(_REPLACE_TRIES_MAX):
            try:
                await self._send_request("POST", "secrets", body=body)
            except KubernetesRefusal as refusal:
                if refusal.status != CONFLICT:
                    raise
            else:
                return
            await asyncio.sleep(_POLL_S)
        name = body["metadata"]["name"]
        raise build_start_failure(f"Secret {name} of an earlier delivery is not removed")

    async def follow_logs(self, container: StartedContainer) -> AsyncIterator[tuple[str, bytes]]:
        """Yield what a container writes until it ends, also over several connections."""
        lines = TimedLines()
        query = {"container": kubernetes_job.CONTAINER_NAME, "follow": "true", "timestamps": "true"}
        path = f"{await self._build_path('pods')}/{container.pod}/log"
        while True:
            # What is written before a pod has ended is in the connection that is opened after.
            is_running = (await self._read_pod(container)).is_running
            since = {"sinceTime": lines.begin_connection()} if lines.last else {}
            try:
                async with self._api.stream_response(
                    "GET", path, query={**query, **since}
                ) as response:
                    async for data in response.content.iter_any():
                        if text := lines.feed_bytes(data):
                            yield STDOUT, text
            except KubernetesRefusal as refusal:
                raise refusal.build_failure("to follow the log") from refusal
            if not is_running:
                return
            await asyncio.sleep(_POLL_S)

    async def wait_for_end(self, container: StartedContainer) -> ContainerEnd:
        """Return how a container ended; raises `ToolFailure`."""
        tries_left = _UNREACHABLE_TRIES_MAX
        while True:
            try:
                end = await self._find_end(container)
                tries_left = _UNREACHABLE_TRIES_MAX
            except ToolFailure as problem:
                tries_left -= 1
                is_certain = isinstance(problem, WorkerPodGone) and problem.is_certain
                if is_certain or problem.error.kind != "connection" or not tries_left:
                    raise
                await asyncio.sleep(_UNREACHABLE_PAUSE_S)
                continue
            if end is not None:
                return _check_result(end)
            await asyncio.sleep(_POLL_S)

    async def collect_files(
        self,
        container: StartedContainer,  # noqa: ARG002 - the port has it
        target: BinaryIO,  # noqa: ARG002 - the port has it
        *,
        bytes_max: int,  # noqa: ARG002 - the port has it
    ) -> bool:
        """Tell that there are none: a pod that has ended shows its files to nobody."""
        return False

    async def remove_container(self, container_id: str, *, grace_s: float) -> None:
        """Delete a Job and end its pod; Kubernetes removes the Secret then.

        The Job of a later delivery has the same name, and stays unless only the name is given.
        """
        name, _, uid = container_id.partition("/")
        query = {"labelSelector": f"controller-uid={uid}" if uid else f"job-name={name}"}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions", **_BACKGROUND}
        if uid:
            options["preconditions"] = {"uid": uid}
        seconds = str(max(0, round(grace_s)))
        try:
            await self._send_request("DELETE", f"jobs/{name}", body=options)
        except KubernetesRefusal as refusal:
            if refusal.status not in (NOT_FOUND, CONFLICT):
                raise refusal.build_failure("to remove the Job") from refusal
        try:
            query["gracePeriodSeconds"] = seconds
            await self._send_request("DELETE", "pods", query=query)
        except KubernetesRefusal as refusal:
            raise refusal.build_failure("to end the pod") from refusal

    async def list_containers(self) -> list[ContainerRecord]:
        """List the Jobs that workers have started; raises `ToolFailure`."""
        query = {"labelSelector": f"{kubernetes_job.NAME_LABEL}={kubernetes_job.NAME}"}
        try:
            job_list = await self._send_request("GET", "jobs", query=query)
        except KubernetesRefusal as refusal:
            raise refusal.build_failure("to list Jobs") from refusal
        return [_parse_record(job["metadata"]) for job in job_list.get("items") or ()]

    async def close(self) -> None:
        """Close connections."""
        await self._api.close()

    async def _create_job(
        self, spec: ContainerSpec, files: list[WorkFile], tell: Callable[[str], None]
    ) -> Any:
        body = kubernetes_job.build_job(spec, files)
        if self._owns_jobs:
            # Kubernetes removes the Job when the worker's pod is gone.
            body["metadata"]["ownerReferences"] = [
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "name": self._worker_pod.name,
                    "uid": self._worker_pod.uid,
                }
            ]
        for number in range(_REPLACE_TRIES_MAX):
            try:
                return await self._send_request("POST", "jobs", body=body)
            except KubernetesRefusal as refusal:
                if refusal.status != CONFLICT:
                    raise
            if number == 0:
                tell(
                    f"Job {spec.name} of an earlier delivery of this attempt is removed: the "
                    "attempt runs anew"
                )
                await self.remove_container(spec.name, grace_s=0)
            await asyncio.sleep(_POLL_S)
        text = f"Job {spec.name} of an earlier delivery of this attempt cannot be removed"
        raise build_start_failure(text)

    async def _wait_for_start(
        self, spec: ContainerSpec, uid: str, tell: Callable[[str], None]
    ) -> str:
        """Return the name of the pod whose container has begun; raises `ToolFailure`."""
        clock, last_notice = asyncio.get_running_loop(), ""
        until_s = clock.time() + _SCHEDULE_S
        while True:
            state = await self._find_pod(uid)
            if state.is_running or state.end is not None:
                return state.name
            if state.start_problem:
                text = f"container of image {spec.image} cannot be started: {state.start_problem}"
                raise build_start_failure(text, is_lasting=state.is_problem_lasting)
            if state.waits_for and state.waits_for != last_notice:
                last_notice = state.waits_for
                tell(f"the container waits: {last_notice}")
            if clock.time() > until_s:
                reason = last_notice or "no pod"
                text = f"the container did not begin within {_SCHEDULE_S:g} s: {reason}"
                raise build_start_failure(text)
            await asyncio.sleep(_POLL_S)

    async def _find_pod(self, uid: str) -> PodState:
        query = {"labelSelector": f"controller-uid={uid}"}
        pod_list = await self._send_request("GET", "pods", query=query)
        pods = pod_list.get("items") or ()
        return kubernetes_pod.parse_pod(pods[0]) if pods else PodState()

    async def _read_pod(self, container: StartedContainer) -> PodState:
        try:
            pod = await self._send_request("GET", f"pods/{container.pod}")
        except KubernetesRefusal as refusal:
            if refusal.status == NOT_FOUND:
                return PodState(name=container.pod)
            raise refusal.build_failure("to read the pod") from refusal
        return kubernetes_pod.parse_pod(pod)

    async def _find_end(self, container: StartedContainer) -> ContainerEnd | None:
        """Return how a container ended, None while it goes on; raises `ToolFailure`."""
        try:
            end = (await self._read_pod(container)).end
            if end is None or end.evicted:
                end = await self._find_job_end(container) or end
        except ToolFailure as problem:
            if problem.error.kind != "connection":
                await self._check_own_pod()
            raise
        if end is not None and (end.exit_code or end.evicted):
            await self._check_own_pod()
        return end

    async def _check_own_pod(self) -> None:
        """Raise `WorkerPodGone` where this worker's pod is gone, and its Jobs go with it.

        A failure that it reports then would end an execution that the next worker can go on with.
        """
        if not self._owns_jobs:
            return
        try:
            pod = await self._send_request("GET", f"pods/{self._worker_pod.name}")
            is_gone = pod["metadata"]["uid"] != self._worker_pod.uid
        except KubernetesRefusal as refusal:
            if refusal.status != NOT_FOUND:
                raise refusal.build_failure("to read the worker's own pod") from refusal
            is_gone = True
        if is_gone:
            text = f"the worker's pod {self._worker_pod.name} was deleted, and its Jobs with it"
            raise WorkerPodGone(text, is_certain=True)

    @property
    def _owns_jobs(self) -> bool:
        return bool(self._worker_pod.uid) and not self._namespace

    async def _find_job_end(self, container: StartedContainer) -> ContainerEnd | None:
        """Return how a Job ended whose pod is gone or was ended; None while it goes on."""
        try:
            job = await self._send_request("GET", f"jobs/{container.name}")
        except KubernetesRefusal as refusal:
            if refusal.status == NOT_FOUND:
                text = (
                    f"Job {container.name} was removed before its end, and not by its task: by "
                    "hand, or as its attempt was delivered to another worker"
                )
                raise build_evicted_failure(text) from refusal
            raise refusal.build_failure("to read the Job") from refusal
        if _build_id(container.name, job["metadata"]["uid"]) != container.container_id:
            raise build_evicted_failure(
                f"Job {container.name} was replaced: its attempt was delivered to another worker"
            )
        if kubernetes_pod.is_past_deadline(job):
            return ContainerEnd(exit_code=-1, is_past_deadline=True)
        failure_text = kubernetes_pod.find_job_failure(job)
        return ContainerEnd(exit_code=-1, evicted=failure_text) if failure_text else None

    async def _send_request(
        self, method: str, path: str, *, query: dict[str, str] | None = None, body: Any = None
    ) -> Any:
        kind, _, name = path.partition("/")
        full = await self._build_path(kind) + (f"/{name}" if name else "")
        return await self._api.send_request(method, full, query=query, body=body)

    async def _build_path(self, kind: str) -> str:
        group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        namespace = self._namespace or await self._api.read_namespace()
        return f"{group}/namespaces/{namespace}/{kind}"


class TimedLines:
    """Takes the times off the lines of a log; lines that came before are left out."""

    def __init__(self) -> None:
        self.last = ""
        self._last_stamp = b""
        self._unfinished_line = b""
        self._is_within = False

    def begin_connection(self) -> str:
        """Begin a connection anew, from the last line; return its time."""
        self._last_stamp, self._unfinished_line, self._is_within = self.last.encode(), b"", False
        return self.last

    def feed_bytes(self, data: bytes) -> bytes:
        """Take more bytes; return the lines that they end, and of a very long line what came."""
        *lines, self._unfinished_line = (self._unfinished_line + data).split(b"\n")
        text = b"".join(map(self._end_line, lines))
        if len(self._unfinished_line) > _LINE_BYTES_MAX:
            text += self._end_line(self._unfinished_line)[:-1]
            self._unfinished_line, self._is_within = b"", True
        return text

    def _end_line(self, line: bytes) -> bytes:
        if self._is_within:
            self._is_within = False
            return line + b"\n"
        stamp, _, text = line.partition(b" ")
        if self._last_stamp and stamp <= self._last_stamp:
            return b""
        self.last = stamp.decode(errors="replace")
        return text + b"\n"


def _select_files(files: WorkFiles, tell: Callable[[str], None]) -> list[WorkFile]:
    """Return the files that a Secret has room for; those of the task come first."""
    own_files = {file.path: file for file in files.own}
    paths = [
        path for path in list_files(files.folder) if path not in own_files and path != RESULT_NAME
    ]
    size_bytes = sum((files.folder / path).stat().st_size for path in paths)
    if size_bytes + sum(len(file.content) for file in files.own) > kubernetes_job.FILES_BYTES_MAX:
        tell(
            f"the {len(paths)} files of this execution have {size_bytes:,} bytes, more than a "
            "Secret holds: the container has none of them"
        )
        return list(files.own)
    folder_files = [
        WorkFile(path=path, content=Path(files.folder, path).read_bytes()) for path in sorted(paths)
    ]
    return [*folder_files, *files.own]


def _check_result(end: ContainerEnd) -> ContainerEnd:
    if end.exit_code == 0 and end.result is not None and len(end.result) >= _RESULT_BYTES_MAX:
        text = (
            f"{RESULT_NAME} has more than the {_RESULT_BYTES_MAX:,} bytes that Kubernetes gives "
            "back: write the result as the last line of the output"
        )
        raise ToolFailure(build_error("payload_too_large", text, source=SOURCE))
    return end


def _build_id(name: str, uid: str) -> str:
    """Name one Job: its name is that of the attempt, which a later delivery has, too."""
    return f"{name}/{uid}"


def _parse_record(metadata: dict[str, Any]) -> ContainerRecord:
    annotations = metadata.get("annotations") or {}
    deadline = str(annotations.get(DEADLINE_LABEL, ""))
    return ContainerRecord(
        container_id=_build_id(metadata["name"], metadata["uid"]),
        name=metadata["name"],
        owner=annotations.get(OWNER_LABEL, ""),
        deadline_s=int(deadline) if deadline.isdigit() else 0,
    )
