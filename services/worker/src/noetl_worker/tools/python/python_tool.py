"""The `python` tool: user code in warm child processes, one tenant per process."""

import asyncio
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from noetl_chassis.blocking_work import run_in_thread
from noetl_contracts.log_chunks import NOTICE
from noetl_storage.process import removal
from noetl_worker.domain.failures import ToolFailure, build_error, classify_file_error
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.payloads.task_timeout import task_timeout
from noetl_worker.sandbox.confinement import SYSTEM_PATHS
from noetl_worker.sandbox.user_call import CallAnswer, CallRequest
from noetl_worker.tools.calls.background_tasks import BackgroundTasks
from noetl_worker.tools.calls.call import Call, CheckoutPort, Outcome
from noetl_worker.tools.python import errors as python_errors
from noetl_worker.tools.python.environments import PackageEnvironments
from noetl_worker.tools.python.process import (
    ProcessScope,
    PythonChild,
    start_python_process,
)
from noetl_worker.tools.python.requirements import (
    parse_libs,
    parse_network,
    parse_paths,
    parse_requirements,
)
from noetl_worker.tools.scripts.script_loader import ScriptLoader, name_source

_CALLS_PER_PROCESS = 10_000
_SANDBOX = "noetl_worker.sandbox"
_HOME, _FILES = "home", "files"
_REMOVAL_S = 60.0

log = structlog.get_logger(__name__)


class PythonLimits(Struct, frozen=True, kw_only=True):
    """What user code may use."""

    processes_max: int = 2
    memory_bytes: int = 2 * 1024**3
    files_max: int = 256
    # Processes and threads; Linux counts those of the user, and none of root's.
    threads_max: int = 512
    file_bytes: int = 1024**3
    has_network: bool = False
    # Whether a task may ask for the network with `spec.network`.
    is_network_by_task: bool = False


class PythonTool:
    """Runs code in at most `processes_max` children at once."""

    def __init__(
        self,
        *,
        limits: PythonLimits,
        scripts: ScriptLoader,
        directory: Path,
        folders: tuple[str, ...],
        make_checkout: Callable[[Path], CheckoutPort],
        environments: PackageEnvironments,
        mask: SecretMask,
    ) -> None:
        self._limits = limits
        self._mask = mask
        self._environments = environments
        # What tasks may read besides the system's folders and their own.
        self._folders = folders
        self._make_checkout = make_checkout
        self._scripts = scripts
        self._directory = directory
        self._leftovers = BackgroundTasks()
        self._free = asyncio.Semaphore(limits.processes_max)
        self._idle: list[PythonChild] = []
        self._count = 0
        self._missing_walls: tuple[str, ...] | None = None

    async def run(self, call: Call) -> Outcome:
        """Run a task's code."""
        try:
            ask = _build_request(call, await self._load_source(call), self._folders)
            requirements = parse_requirements(call.fields, self._environments.install_policy)
            has_network = parse_network(
                call.fields,
                is_open=self._limits.has_network,
                is_by_task=self._limits.is_network_by_task,
            )
        except (ToolFailure, ValueError) as problem:
            error = getattr(problem, "error", None) or build_error("validation", str(problem))
            return Outcome(error=error)
        async with self._free:
            try:
                owner = (call.site.tenant_id, call.site.organization_id)
                async with (
                    task_timeout(call.timeout.total),
                    self._environments.hold_environment(
                        requirements, owner, partial(call.log.add_line, NOTICE)
                    ) as packages,
                ):
                    room = ProcessScope(owner=owner, has_network=has_network, packages=packages)
                    return await self._ask_child(ask, call, room)
            except ToolFailure as problem:
                return Outcome(error=problem.error)
            except TimeoutError:
                return Outcome(error=python_errors.build_timeout_error(call.timeout.total))

    async def _ask_child(self, ask: CallRequest, call: Call, room: ProcessScope) -> Outcome:
        """Run the code among the files of its execution; raises `ToolFailure`."""
        child = await self._get_child(room, call.site)
        is_sound = is_spent = False
        try:
            await self._lend_files(child, call)
            child.output.begin_call(call.log)
            answer = await child.send_call(ask, call.sink)
            is_heard = await child.output.finish_call()
            is_spent = (
                child.calls >= _CALLS_PER_PROCESS
                or answer.is_spent
                or not is_heard
                or child.has_leftovers()
            )
            if is_spent:
                # Nothing of it writes any more while its files are read.
                child.kill_process()
                await child.wait_until_ended()
            outcome = self._build_outcome(answer, call)
            if outcome.error is None:
                await call.task_files.publish_changes(outcome)
            # Empty folders and compiled modules go, too: the next task may run elsewhere.
            is_sound = not is_spent and await call.task_files.drop_changes()
        except EOFError:
            code = await child.wait_until_ended()
            error = python_errors.build_ended_error(
                code, timeout_s=call.timeout.total, memory_bytes=self._limits.memory_bytes
            )
            return Outcome(error=error)
        finally:
            if is_sound:
                self._idle.append(child)
            else:
                self._dismiss_child(child)
                # What a process wrote before it was ended belongs to its log.
                await child.output.finish_call()
        return outcome

    async def _lend_files(self, child: PythonChild, call: Call) -> None:
        """Put the files of the execution where the code runs; raises `ToolFailure`."""
        if child.execution_id != call.site.execution_id:
            try:
                if not child.checkout.is_bare:
                    await run_in_thread(child.checkout.clear_files)
            except OSError as problem:
                name = str(problem.filename or child.checkout.folder)
                raise ToolFailure(classify_file_error(problem, name, source="python")) from problem
            child.execution_id = call.site.execution_id
        await call.task_files.fetch_folder(child.checkout)

    async def _get_child(self, room: ProcessScope, site: UnitScope) -> PythonChild:
        """Take an idle process of the room, or start one in place of another's.

        One that has the files of the execution already is taken first.
        """
        indexes = [index for index, child in enumerate(self._idle) if child.room == room]
        if indexes:
            at_hand = (
                index for index in indexes if self._idle[index].execution_id == site.execution_id
            )
            return self._idle.pop(next(at_hand, indexes[-1]))
        if self._count >= self._limits.processes_max and self._idle:
            self._dismiss_child(self._idle.pop(0))
        return await self._start_child(room)

    async def _start_child(self, room: ProcessScope) -> PythonChild:
        home = Path(tempfile.mkdtemp(dir=self._directory))
        for name in (_HOME, _FILES):
            (home / name).mkdir(mode=0o700)
        # Others that start meanwhile are to see it.
        self._count += 1
        try:
            process, output = await start_python_process(
                _SANDBOX, self._build_bounds(home, room), home / _HOME, home / _FILES
            )
        except BaseException:
            self._count -= 1
            self._leftovers.start_task(self._remove_home(home))
            raise
        self._environments.acquire_folder(room.packages)
        checkout = self._make_checkout(home / _FILES)
        child = PythonChild(process, output, room=room, home=home, checkout=checkout)
        try:
            self._warn_of_missing_walls(await child.wait_until_ready())
        except EOFError:
            # The call is told how it ended.
            return child
        except BaseException:
            self._dismiss_child(child)
            raise
        return child

    def _build_bounds(self, home: Path, room: ProcessScope) -> dict[str, Any]:
        limits = self._limits
        return {
            "memory_bytes": limits.memory_bytes,
            "files_max": limits.files_max,
            "processes_max": limits.threads_max,
            "file_bytes": limits.file_bytes,
            "network": room.has_network,
            "read": [*self._folders, *([] if room.packages is None else [str(room.packages)])],
            "write": [str(home)],
            "packages": None if room.packages is None else str(room.packages),
            "home": str(home / _HOME),
        }

    async def _load_source(self, call: Call) -> str:
        """Return the code of a task; raises `ToolFailure` or `ValueError`."""
        fields = call.fields
        if fields.get("script") is not None:
            return await self._scripts.load_text(fields["script"], call)
        if fields.get("code_b64") is not None:
            return b64decode(str(fields["code_b64"]), validate=True).decode()
        source = fields.get("code")
        if not isinstance(source, str):
            raise ToolFailure(build_error("validation", "field 'code' must be Python source"))
        return source

    def _warn_of_missing_walls(self, missing_walls: dict[str, str]) -> None:
        """Say once which walls around user code this system does not grant, and why."""
        if missing_walls and not self._missing_walls:
            log.warning("python tasks are only partly isolated", lacking=missing_walls)
        self._missing_walls = tuple(missing_walls)

    def find_missing_walls(self) -> tuple[str, ...] | None:
        """Name the walls that tasks lack here; None until one has run."""
        return self._missing_walls

    def _dismiss_child(self, child: PythonChild) -> None:
        self._count -= 1
        child.kill_process()
        self._leftovers.start_task(self._clean_up_child(child))

    async def _clean_up_child(self, child: PythonChild) -> None:
        """Wait for a child's end, and remove what it could not remove itself."""
        await child.wait_until_ended()
        self._environments.release_folder(child.room.packages)
        await child.output.close()
        await self._remove_home(child.home)

    async def _remove_home(self, home: Path) -> None:
        # What a task has left may be much: the event loop has other things to do meanwhile.
        if not await asyncio.to_thread(removal.remove_folder, home, within_s=_REMOVAL_S):
            log.warning("files of python tasks are left on the disk", home=str(home))

    def _build_outcome(self, answer: CallAnswer, call: Call) -> Outcome:
        error = python_errors.build_answer_error(
            answer, self._mask, memory_bytes=self._limits.memory_bytes
        )
        if error is not None:
            return Outcome(error=error)
        if call.sink is not None:
            if answer.has_streamed:
                return Outcome(data={})
            text = "the code of a task with 'stream' must yield its rows: 'yield row'"
            return Outcome(error=build_error("validation", text, source="python"))
        return Outcome(data=answer.result)

    async def close(self) -> None:
        """End every idle process."""
        while self._idle:
            self._dismiss_child(self._idle.pop())
        await self._leftovers.wait_for_all()


def _build_request(call: Call, source: str, folders: Iterable[str]) -> CallRequest:
    """Describe one call; raises `ToolFailure`."""
    libs, required = parse_libs(call.fields.get("libs"))
    return CallRequest(
        code=source,
        inputs=call.input,
        execution_id=call.site.execution_id,
        window_rows=0 if call.sink is None else call.sink.window_rows,
        cpu_s=int(call.timeout.total) + 1,
        iterator=call.iterator,
        named=call.named,
        libs=libs,
        required=required,
        paths=parse_paths(call.fields.get("deps"), (*folders, *SYSTEM_PATHS)),
        file=name_source(call),
    )


@asynccontextmanager
async def open_python(
    *,
    limits: PythonLimits,
    scripts: ScriptLoader,
    directory: Path,
    folders: tuple[str, ...],
    make_checkout: Callable[[Path], CheckoutPort],
    environments: PackageEnvironments,
    mask: SecretMask,
) -> AsyncIterator[PythonTool]:
    """Hold the child processes while the block runs, their homes below a directory.

    Of files they read those of the system, of the interpreter and of `folders`.
    """
    tool = PythonTool(
        limits=limits,
        scripts=scripts,
        directory=directory,
        folders=folders,
        make_checkout=make_checkout,
        environments=environments,
        mask=mask,
    )
    try:
        yield tool
    finally:
        await tool.close()
