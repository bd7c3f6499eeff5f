"""The `python` tool: user code in warm child processes, one tenant per process."""

import asyncio
import os
import signal
import struct
import sys
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from noetl_chassis.blocking_work import in_thread
from noetl_contracts import codec
from noetl_contracts.log_chunks import STDERR, STDOUT
from noetl_storage import removal
from noetl_worker.domain.failures import ToolFailure, failure, of_exception, of_file
from noetl_worker.domain.sites import Site
from noetl_worker.own_time import own_time
from noetl_worker.sandbox.calling import Answer, Ask
from noetl_worker.tools.call import Call, Outcome, Sink
from noetl_worker.tools.leftovers import Leftovers
from noetl_worker.tools.python_modules import read_libs, read_paths
from noetl_worker.tools.python_output import PythonOutput, open_pipe
from noetl_worker.tools.scripts import Scripts

_REST_BYTES = 64 * 1024
_LENGTH = struct.Struct(">I")
_CALLS_PER_PROCESS = 10_000
_END_S = 2.0
_HOME, _FILES = "home", "files"
_REMOVAL_S = 60.0

Owner = tuple[str, str]

log = structlog.get_logger(__name__)


class Limits(Struct, frozen=True, kw_only=True):
    """What user code may use."""

    processes_max: int = 2
    memory_bytes: int = 2 * 1024**3
    files_max: int = 256
    # Processes and threads; Linux counts those of the user, and none of root's.
    threads_max: int = 512
    file_bytes: int = 1024**3
    has_network: bool = False


class Child:
    """One process in its home; it serves one tenant and is replaced after many calls."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        output: PythonOutput,
        *,
        owner: Owner,
        home: Path,
        checkout: Any,
    ) -> None:
        self.owner = owner
        self.output = output
        self.home = home
        # The folder in which the code runs, with the files of one execution after another.
        self.checkout = checkout
        self.execution_id = ""
        self.calls = 0
        self._process = process

    async def ask(self, ask: Ask, sink: Sink | None = None) -> Answer:
        """Send one call and read its answer; raises `EOFError` when the process ended.

        Rows that come before the answer go to the `sink`: while that waits, so does the process.
        """
        self.calls += 1
        reader, writer = self._process.stdout, self._process.stdin
        if reader is None or writer is None:
            raise EOFError
        data = codec.encode(ask)
        writer.write(_LENGTH.pack(len(data)) + data)
        try:
            await writer.drain()
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                answer = codec.decode_as(await reader.readexactly(length), Answer)
                if answer.rows is None or sink is None:
                    return answer
                await sink.take(answer.rows)
        except (asyncio.IncompleteReadError, ConnectionError) as problem:
            raise EOFError from problem

    def kill(self) -> None:
        """End it without a warning."""
        # The group, too: user code may have started processes of its own.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def ended(self) -> int:
        """Wait until it is gone and return how it ended."""
        try:
            async with asyncio.timeout(_END_S):
                code = await self._process.wait()
        except TimeoutError:
            self.kill()
            code = await self._process.wait()
        await self._forget_rest()
        return code

    async def _forget_rest(self) -> None:
        """Read what nobody wants any more: a pipe that is not read to its end stays open."""
        reader = self._process.stdout
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_S):
                while reader is not None and await reader.read(_REST_BYTES):
                    continue


class PythonTool:
    """Runs code in at most `processes_max` children at once."""

    def __init__(
        self,
        *,
        limits: Limits,
        scripts: Scripts,
        directory: Path,
        hidden: tuple[Path, ...],
        make_checkout: Callable[[Path], Any],
    ) -> None:
        self._limits = limits
        # Folders of other tasks and organizations.
        self._hidden = hidden
        self._make_checkout = make_checkout
        self._scripts = scripts
        self._directory = directory
        self._leftovers = Leftovers()
        self._free = asyncio.Semaphore(limits.processes_max)
        self._idle: list[Child] = []
        self._count = 0
        self._has_warned = False

    async def run(self, call: Call) -> Outcome:
        """Run a task's code."""
        try:
            ask = _ask(call, await self._source(call))
        except (ToolFailure, ValueError) as problem:
            error = getattr(problem, "error", None) or failure("validation", str(problem))
            return Outcome(error=error)
        async with self._free:
            try:
                async with own_time(call.timeout.total):
                    return await self._asked(ask, call)
            except ToolFailure as problem:
                return Outcome(error=problem.error)
            except TimeoutError:
                text = f"the code did not end within {call.timeout.total:g} s"
                return Outcome(error=failure("timeout", text, source="python"))

    async def _asked(self, ask: Ask, call: Call) -> Outcome:
        """Run the code among the files of its execution; raises `ToolFailure`."""
        child = await self._child(call.site)
        is_sound = is_spent = False
        try:
            await self._lend_files(child, call)
            child.output.begin(call.log)
            answer = await child.ask(ask, call.sink)
            is_heard = await child.output.finish()
            is_spent = child.calls >= _CALLS_PER_PROCESS or answer.is_spent or not is_heard
            if is_spent:
                # Nothing of it writes any more while its files are read.
                child.kill()
            outcome = self._outcome(answer, call)
            if outcome.error is None:
                await call.files.publish(outcome)
            # Empty folders and compiled modules go, too: the next task may run elsewhere.
            is_sound = not is_spent and await call.files.drop_changes()
        except EOFError:
            code = await child.ended()
            text = (
                f"the Python process ended with code {code}: it was killed, crashed or "
                "went over its limits of memory or processor time"
            )
            return self._outcome(Answer(exception="ProcessEnded", message=text), call)
        finally:
            if is_sound:
                self._idle.append(child)
            else:
                self._dismiss(child)
                # What a process wrote before it was ended belongs to its log.
                await child.output.finish()
        return outcome

    async def _lend_files(self, child: Child, call: Call) -> None:
        """Put the files of the execution where the code runs; raises `ToolFailure`."""
        if child.execution_id != call.site.execution_id:
            try:
                if not child.checkout.is_bare:
                    await in_thread(child.checkout.clear)
            except OSError as problem:
                name = str(problem.filename or child.checkout.folder)
                raise ToolFailure(of_file(problem, name, source="python")) from problem
            child.execution_id = call.site.execution_id
        await call.files.folder(child.checkout)

    async def _child(self, site: Site) -> Child:
        """Take an idle process of the organization, or start one in place of another's.

        One that has the files of the execution already is taken first.
        """
        owner = (site.tenant_id, site.organization_id)
        own = [index for index, child in enumerate(self._idle) if child.owner == owner]
        if own:
            at_hand = (
                index for index in own if self._idle[index].execution_id == site.execution_id
            )
            return self._idle.pop(next(at_hand, own[-1]))
        if self._count >= self._limits.processes_max and self._idle:
            self._dismiss(self._idle.pop(0))
        return await self._start(owner)

    async def _start(self, owner: Owner) -> Child:
        home = Path(tempfile.mkdtemp(dir=self._directory))
        for name in (_HOME, _FILES):
            (home / name).mkdir(mode=0o700)
        # Others that start meanwhile are to see it.
        self._count += 1
        try:
            process, output = await self._spawned(home)
        except BaseException:
            self._count -= 1
            self._leftovers.add(self._removed(home))
            raise
        checkout = self._make_checkout(home / _FILES)
        return Child(process, output, owner=owner, home=home, checkout=checkout)

    async def _spawned(self, home: Path) -> tuple[asyncio.subprocess.Process, PythonOutput]:
        out, out_end = open_pipe()
        err, err_end = open_pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-m",
                "noetl_worker.sandbox",
                codec.text(self._bounds(home, output=out_end)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=err_end,
                pass_fds=(out_end,),
                env={
                    "PATH": "/usr/bin:/bin",
                    "HOME": str(home / _HOME),
                    "TMPDIR": str(home / _HOME),
                    "LANG": "C.UTF-8",
                },
                cwd=home / _FILES,
                start_new_session=True,
            )
        except BaseException:
            out.close()
            err.close()
            raise
        finally:
            os.close(out_end)
            os.close(err_end)
        return process, PythonOutput(((STDOUT, out), (STDERR, err)))

    def _bounds(self, home: Path, *, output: int) -> dict[str, Any]:
        limits = self._limits
        return {
            "memory_bytes": limits.memory_bytes,
            "files_max": limits.files_max,
            "processes_max": limits.threads_max,
            "file_bytes": limits.file_bytes,
            "network": limits.has_network,
            "output": output,
            "hidden": [str(folder) for folder in self._hidden],
            "shown": [str(home)],
            "home": str(home / _HOME),
        }

    async def _source(self, call: Call) -> str:
        """Return the code of a task; raises `ToolFailure` or `ValueError`."""
        fields = call.fields
        if fields.get("script") is not None:
            return await self._scripts.text(fields["script"], call)
        if fields.get("code_b64") is not None:
            return b64decode(str(fields["code_b64"]), validate=True).decode()
        source = fields.get("code")
        if not isinstance(source, str):
            raise ToolFailure(failure("validation", "field 'code' must be Python source"))
        return source

    def _warn(self, lacking: list[str]) -> None:
        """Say once which walls around user code this system does not grant."""
        if lacking and not self._has_warned:
            self._has_warned = True
            log.warning("python tasks are not walled off", lacking=", ".join(lacking))

    def _dismiss(self, child: Child) -> None:
        self._count -= 1
        child.kill()
        self._leftovers.add(self._gone(child))

    async def _gone(self, child: Child) -> None:
        """Wait for a child's end, and remove what it could not remove itself."""
        await child.ended()
        await child.output.close()
        await self._removed(child.home)

    async def _removed(self, home: Path) -> None:
        # What a task has left may be much: the event loop has other things to do meanwhile.
        if not await asyncio.to_thread(removal.removed, home, within_s=_REMOVAL_S):
            log.warning("files of python tasks are left on the disk", home=str(home))

    def _outcome(self, answer: Answer, call: Call) -> Outcome:
        self._warn(answer.lacking)
        if answer.missing is not None:
            text = f"module '{answer.missing}' is not installed on this worker"
            return Outcome(error=failure("missing_dependency", text, source="python"))
        if answer.result_bytes:
            text = f"the result has {answer.result_bytes} bytes: store it with an artifact task"
            return Outcome(error=failure("payload_too_large", text, source="python"))
        if answer.exception is None and call.sink is not None:
            if answer.has_streamed:
                return Outcome(data={})
            text = "the code of a task with 'stream' must yield its rows: 'yield row'"
            return Outcome(error=failure("validation", text, source="python"))
        if answer.exception is None:
            return Outcome(data=answer.result)
        return Outcome(
            error=of_exception(
                answer.exception, answer.bases, answer.message, traceback=answer.traceback
            )
        )

    async def close(self) -> None:
        """End every idle process."""
        while self._idle:
            self._dismiss(self._idle.pop())
        await self._leftovers.finish()


def _ask(call: Call, source: str) -> Ask:
    """Describe one call; raises `ToolFailure`."""
    libs, required = read_libs(call.fields.get("libs"))
    return Ask(
        code=source,
        inputs=call.input,
        execution_id=call.site.execution_id,
        window_rows=0 if call.sink is None else call.sink.window_rows,
        cpu_s=int(call.timeout.total) + 1,
        iterator=call.iterator,
        named=call.named,
        libs=libs,
        required=required,
        paths=read_paths(call.fields.get("deps")),
    )


@asynccontextmanager
async def open_python(
    *,
    limits: Limits,
    scripts: Scripts,
    directory: Path,
    hidden: tuple[Path, ...],
    make_checkout: Callable[[Path], Any],
) -> AsyncIterator[PythonTool]:
    """Hold the child processes while the block runs, their homes below a directory.

    They see nothing of the `hidden` folders.
    """
    tool = PythonTool(
        limits=limits,
        scripts=scripts,
        directory=directory,
        hidden=hidden,
        make_checkout=make_checkout,
    )
    try:
        yield tool
    finally:
        await tool.close()
