"""The processes in which the code of Spark tasks runs: one for each task, the next one ready."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject
from noetl_storage.process import removal
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.sandbox.user_call import ProcessReady
from noetl_worker.spark.code_call import CodeAnswer, CodeCall, CodeRunner
from noetl_worker.task_logs.task_log import TaskLogPort
from noetl_worker.tools.calls.background_tasks import BackgroundTasks
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.calls.child_process import SupervisedProcess
from noetl_worker.tools.python import errors as python_errors
from noetl_worker.tools.python import process as python_process
from noetl_worker.tools.python.environments import PackageEnvironments
from noetl_worker.tools.python.process import PythonOutput

_MODULE = "noetl_worker.spark.code"
_HOME, _FILES = "home", "files"
_REMOVAL_S = 60.0

log = structlog.get_logger(__name__)


class CodeLimits(Struct, frozen=True, kw_only=True):
    """What the code of a Spark task may use; `folders` are those that it may read."""

    processes_max: int
    memory_bytes: int
    files_max: int
    threads_max: int
    file_bytes: int
    folders: tuple[str, ...]
    # With which Python executors run what the code defines.
    executor_python: str


class CodeProcess:
    """One process, for one call of `main` and for as long as its tables are read."""

    def __init__(self, process: SupervisedProcess, output: PythonOutput, *, place: Path) -> None:
        self.place = place
        self._process = process
        self._output = output

    @property
    def is_running(self) -> bool:
        """Tell whether it has not ended yet."""
        return self._process.is_running

    async def run_call(self, call: CodeCall, task_log: TaskLogPort) -> CodeAnswer:
        """Call `main` and return its answer; raises `EOFError` when the process ended."""
        process_ready = codec.decode_as(
            await python_process.read_frame(self._process), ProcessReady
        )
        if process_ready.lacking:
            log.debug("the code of a Spark task is isolated in part", lacking=process_ready.lacking)
        self._output.begin_call(task_log)
        try:
            await python_process.send_frame(self._process, codec.encode_json(call))
            data = await python_process.read_frame(self._process)
            return codec.decode_as(data, CodeAnswer)
        finally:
            await self._output.finish_call()

    def kill_process(self) -> None:
        """End it with all that it has started, without a warning."""
        self._process.kill_all()

    async def wait_until_ended(self) -> int:
        """Wait until it is gone, and return how it ended."""
        code = await self._process.wait_until_ended()
        await python_process.read_rest(self._process)
        await self._output.close()
        return code


class CodeProcesses:
    """Starts a process for each task with code; none serves two of them."""

    def __init__(self, *, limits: CodeLimits, directory: Path) -> None:
        self._limits = limits
        self._directory = directory
        self._free = asyncio.Semaphore(limits.processes_max)
        self._leftovers = BackgroundTasks()
        self._ready: CodeProcess | None = None
        self._is_closed = False

    @asynccontextmanager
    async def hold_runner(
        self, call: Call, *, master: str, packages: Path | None
    ) -> AsyncIterator[tuple[CodeRunner, CodeProcess]]:
        """Hold what runs the code of a call, and its process, which may be killed at any time."""
        loop = asyncio.get_running_loop()
        async with self._hold_process(packages) as process:

            async def run_call(code_call: CodeCall) -> CodeAnswer:
                try:
                    return await process.run_call(code_call, call.log)
                except EOFError:
                    # It may have closed its pipes and live on.
                    process.kill_process()
                    code = await process.wait_until_ended()
                return CodeAnswer(error=self._build_ended_error(code, call))

            def send_call(code_call: CodeCall) -> CodeAnswer:
                return asyncio.run_coroutine_threadsafe(run_call(code_call), loop).result()

            runner = CodeRunner(
                send_call=send_call,
                master=master,
                packages="" if packages is None else str(packages),
            )
            yield runner, process

    def explain_answer(self, answer: CodeAnswer, mask: SecretMask) -> ErrorObject | None:
        """Say what a call of `main` failed of, masked."""
        if answer.error is not None or answer.raised is None:
            return answer.error
        memory_bytes = self._limits.memory_bytes
        return python_errors.build_answer_error(answer.raised, mask, memory_bytes=memory_bytes)

    def _build_ended_error(self, code: int, call: Call) -> ErrorObject:
        return python_errors.build_ended_error(
            code, timeout_s=call.timeout.total, memory_bytes=self._limits.memory_bytes
        )

    @asynccontextmanager
    async def _hold_process(self, packages: Path | None) -> AsyncIterator[CodeProcess]:
        """Hold a process that has seen no other task; it ends with the block.

        The next one starts meanwhile: to load Spark's modules takes a second or more.
        """
        async with self._free:
            process = await self._take_process(packages)
            try:
                yield process
            finally:
                self._dismiss_process(process)
                if self._ready is None and not self._is_closed:
                    self._leftovers.start_task(self._prepare_process())

    async def close(self) -> None:
        """End every process."""
        self._is_closed = True
        await self._leftovers.wait_for_all()
        if self._ready is not None:
            self._dismiss_process(self._ready)
            self._ready = None
        await self._leftovers.wait_for_all()

    async def _take_process(self, packages: Path | None) -> CodeProcess:
        ready, self._ready = (None, self._ready) if packages else (self._ready, None)
        if ready is not None and not ready.is_running:
            self._dismiss_process(ready)
            ready = None
        return ready or await self._start_process(packages)

    async def _prepare_process(self) -> None:
        try:
            process = await self._start_process(None)
        except OSError as problem:
            log.warning("no process for Spark tasks could be started", error=str(problem))
            return
        if self._ready is None and not self._is_closed:
            self._ready = process
        else:
            self._dismiss_process(process)

    async def _start_process(self, packages: Path | None) -> CodeProcess:
        place = Path(tempfile.mkdtemp(dir=self._directory))
        for name in (_HOME, _FILES):
            (place / name).mkdir(mode=0o700)
        try:
            process, output = await python_process.start_python_process(
                _MODULE,
                self._build_bounds(place, packages),
                place / _HOME,
                place / _FILES,
                PYSPARK_PYTHON=self._limits.executor_python,
            )
        except BaseException:
            self._leftovers.start_task(_remove_place(place))
            raise
        return CodeProcess(process, output, place=place)

    def _build_bounds(self, place: Path, packages: Path | None) -> dict[str, Any]:
        limits = self._limits
        return {
            "memory_bytes": limits.memory_bytes,
            "files_max": limits.files_max,
            "processes_max": limits.threads_max,
            "file_bytes": limits.file_bytes,
            # It asks Spark's driver over the network.
            "network": True,
            "read": [*limits.folders, *([] if packages is None else [str(packages)])],
            "write": [str(place)],
            "packages": None if packages is None else str(packages),
            "home": str(place / _HOME),
        }

    def _dismiss_process(self, process: CodeProcess) -> None:
        process.kill_process()
        self._leftovers.start_task(_clean_up_process(process))


async def _clean_up_process(process: CodeProcess) -> None:
    await process.wait_until_ended()
    await _remove_place(process.place)


async def _remove_place(place: Path) -> None:
    if not await asyncio.to_thread(removal.remove_folder, place, within_s=_REMOVAL_S):
        log.warning("files of a Spark task are left on the disk", place=str(place))


class SparkCode(Struct, frozen=True, kw_only=True):
    """What code runs with: its processes, its packages, and what hides secrets in errors."""

    processes: CodeProcesses
    environments: PackageEnvironments
    mask: SecretMask


@asynccontextmanager
async def open_code_processes(limits: CodeLimits, directory: Path) -> AsyncIterator[CodeProcesses]:
    """Hold the processes while the block runs, their homes below a directory."""
    processes = CodeProcesses(limits=limits, directory=directory)
    try:
        yield processes
    finally:
        await processes.close()
