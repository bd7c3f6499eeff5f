"""The tool: it starts a container, follows its log, waits for its end and takes its files."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import structlog
from msgspec import structs

from noetl_chassis.blocking_work import run_in_thread
from noetl_chassis.clock import Clock
from noetl_contracts.log_chunks import NOTICE
from noetl_worker.domain.failures import ToolFailure, build_disk_full_error, build_error
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.payloads.task_timeout import task_timeout
from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.tools.container import archive, container_result, plan
from noetl_worker.tools.container.archive import WorkFile, WorkFiles
from noetl_worker.tools.container.container_result import OutputTail
from noetl_worker.tools.container.fields import check_fields, merge_fields
from noetl_worker.tools.container.images import build_login
from noetl_worker.tools.container.names import SOURCE
from noetl_worker.tools.container.plan import ContainerLimits
from noetl_worker.tools.container.runtime import (
    ContainerEnd,
    ContainerRuntime,
    ContainerSpec,
    StartedContainer,
    WorkerPodGone,
)
from noetl_worker.tools.scripts.script_loader import ScriptLoader

RUNTIME_SETTING = "NOETL_WORKER_CONTAINERS"
# The log may lag behind the end of a container.
_LAST_LINES_S = 10.0
_REMOVAL_S = 60.0

log = structlog.get_logger(__name__)


class Handover:
    """Ends the worker whose pod was deleted, and leaves its commands to the next one.

    The worker stops as at SIGTERM: it takes no command any more, and gives those back that do not
    end while it drains. Until then a command waits, at most `wait_s`.
    """

    def __init__(self, stop: asyncio.Event, *, wait_s: float) -> None:
        self._stop = stop
        self._wait_s = wait_s

    async def leave_work(self, reason: str) -> None:
        """Stop the worker, and wait to be cancelled as it gives the command back."""
        log.error("this worker stops and gives its commands back", reason=reason)
        self._stop.set()
        await asyncio.sleep(self._wait_s)


class ContainerTool:
    """Runs containers where an operator says where and which; at most so many at once."""

    def __init__(
        self,
        *,
        runtime: ContainerRuntime | None,
        limits: ContainerLimits,
        scripts: ScriptLoader,
        mask: SecretMask,
        vault: CredentialVault,
        clock: Clock,
        owner: str,
        handover: Handover,
    ) -> None:
        self._runtime = runtime
        self._limits = limits
        self._scripts = scripts
        self._mask = mask
        # Opens the credential by which an image is fetched.
        self._vault = vault
        self._clock = clock
        # Whose containers they are, so that others can tell whether this process lives.
        self._owner = owner
        self._handover = handover
        self._free = asyncio.Semaphore(limits.containers_max)

    async def run(self, call: Call) -> Outcome:
        """Run the container of a task to its end."""
        tail = OutputTail(self._mask)
        try:
            fields = merge_fields(call.input, call.fields)
            check_fields(fields)
            runtime = self._get_runtime()
            async with self._free, task_timeout(call.timeout.total):
                spec = await self._build_spec(call, fields)
                own_files = await self._load_files(call, fields)
                files = WorkFiles(folder=await call.task_files.fetch_folder(), own=own_files)
                return await self._run_container(runtime, call, spec, files, tail)
        except WorkerPodGone as problem:
            await self._handover.leave_work(str(problem))
            return Outcome(error=problem.error)
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        except TimeoutError:
            last_words = f": its last line is: {line}" if (line := tail.find_last_line()) else ""
            error = container_result.build_timeout_error(call.timeout.total, last_words).error
            return Outcome(error=error, data={"logs": tail.build_text()})
        except OSError as problem:
            return Outcome(error=build_disk_full_error(problem))
        finally:
            call.log.finish_lines()

    def _get_runtime(self) -> ContainerRuntime:
        if self._runtime is None:
            text = (
                f"container tasks are not run by this worker: {RUNTIME_SETTING} is 'none'; set it "
                "to 'docker' or 'kubernetes'"
            )
            raise ToolFailure(build_error("config", text, source=SOURCE))
        return self._runtime

    async def _build_spec(self, call: Call, fields: dict[str, Any]) -> ContainerSpec:
        now_s = self._clock.now().timestamp()
        spec = plan.build_spec(call, fields, self._limits, owner=self._owner, now_s=now_s)
        plan.check_secrets(spec, self._mask)
        for name in plan.list_unused_fields(fields):
            text = f"field '{name}' has no effect: the step's retry policy tries a task again"
            call.log.add_line(NOTICE, text)
        if call.auth is None:
            return spec
        credential = await self._vault.resolve_auth(call.auth, call.site)
        return structs.replace(spec, registry=build_login(spec.image, credential))

    async def _load_files(self, call: Call, fields: dict[str, Any]) -> tuple[WorkFile, ...]:
        """Load the files that a task itself brings; raises `ToolFailure`."""
        own_files = []
        for item in fields.get("files") or ():
            content = await self._load_content(call, item)
            path = plan.parse_file_path(item["path"])
            own_files.append(WorkFile(path=path, content=content))
        if fields.get("script") is not None:
            text = await self._scripts.load_text(fields["script"], call)
            own_files.append(WorkFile(path=plan.SCRIPT_PATH, content=text.encode()))
        return tuple(own_files)

    async def _load_content(self, call: Call, item: dict[str, Any]) -> bytes:
        if "script" in item:
            return (await self._scripts.load_text(item["script"], call)).encode()
        return plan.format_content(item["content"])

    async def _run_container(
        self,
        runtime: ContainerRuntime,
        call: Call,
        spec: ContainerSpec,
        files: WorkFiles,
        tail: OutputTail,
    ) -> Outcome:
        """Run one container; raises `ToolFailure`, `TimeoutError` and `OSError`."""
        async with self._hold_container(runtime, call, spec, files) as container:
            end = await _watch_container(runtime, container, call, tail)
            if end.is_out_of_memory and end.exit_code == 0:
                call.log.add_line(NOTICE, "a process of the container met its memory limit")
            result = end.result
            if end.exit_code == 0:
                result = await self._collect_files(runtime, container, files) or result
            return container_result.build_outcome(end, container, tail, spec=spec, result=result)

    @asynccontextmanager
    async def _hold_container(
        self,
        runtime: ContainerRuntime,
        call: Call,
        spec: ContainerSpec,
        files: WorkFiles,
    ) -> AsyncIterator[StartedContainer]:
        """Hold a container that is removed afterwards, also when the task is called off."""
        tell = partial(call.log.add_line, NOTICE)
        container = await runtime.start_container(spec, files, tell)
        is_ended = False
        try:
            yield container
            is_ended = True
        finally:
            grace_s = 0.0 if is_ended else self._limits.grace_s
            await asyncio.shield(_remove_container(runtime, container, grace_s=grace_s))

    async def _collect_files(
        self, runtime: ContainerRuntime, container: StartedContainer, files: WorkFiles
    ) -> bytes | None:
        """Take over the files that a container left, and return its result."""
        with tempfile.TemporaryFile() as archive_file:
            bytes_max = self._limits.collected_bytes_max
            if not await runtime.collect_files(container, archive_file, bytes_max=bytes_max):
                return None
            return await run_in_thread(archive.read_archive, archive_file, files)

    async def close(self) -> None:
        """Close connections."""
        if self._runtime is not None:
            await self._runtime.close()


async def _watch_container(
    runtime: ContainerRuntime, container: StartedContainer, call: Call, tail: OutputTail
) -> ContainerEnd:
    """Wait for the end of a container while its log is followed; raises `ToolFailure`."""
    following = asyncio.ensure_future(_follow_log(runtime, container, call, tail))
    try:
        end = await runtime.wait_for_end(container)
        await asyncio.wait((following,), timeout=_LAST_LINES_S)
        if not tail.is_whole:
            text = "the output did not come to its end: its last line is no result"
            call.log.add_line(NOTICE, text)
        return end
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _follow_log(
    runtime: ContainerRuntime, container: StartedContainer, call: Call, tail: OutputTail
) -> None:
    try:
        async for stream, data in runtime.follow_logs(container):
            tail.add_output(stream, data)
            call.log.write_output(stream, data)
            await call.log.wait_for_room()
        tail.is_whole = True
    except ToolFailure as problem:
        call.log.add_line(NOTICE, f"the log cannot be followed any more: {problem.error.message}")


async def _remove_container(
    runtime: ContainerRuntime, container: StartedContainer, *, grace_s: float
) -> None:
    """Remove a container; one that cannot be is left to the sweep."""
    try:
        async with asyncio.timeout(_REMOVAL_S + grace_s):
            await runtime.remove_container(container.container_id, grace_s=grace_s)
    except (ToolFailure, TimeoutError) as problem:
        log.warning(
            "a container is left to the sweep", container=container.name, reason=str(problem)
        )
