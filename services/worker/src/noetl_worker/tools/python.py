"""The `python` tool: user code in warm child processes, one tenant per process."""

import asyncio
import contextlib
import os
import shutil
import signal
import struct
import sys
import tempfile
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from noetl_chassis import names
from noetl_contracts import codec
from noetl_worker.domain.failures import ToolFailure, failure, of_exception
from noetl_worker.domain.masking import Mask
from noetl_worker.sandbox.calling import Answer, Ask
from noetl_worker.tools.call import Call, Outcome
from noetl_worker.tools.leftovers import Leftovers

_LENGTH = struct.Struct(">I")
_CALLS_PER_PROCESS = 10_000
_END_S = 2.0
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}

Owner = tuple[str, str]

log = structlog.get_logger(__name__)


class Limits(Struct, frozen=True, kw_only=True):
    """What user code may use."""

    processes_max: int = 2
    memory_bytes: int = 2 * 1024**3
    files_max: int = 256


class Child:
    """One process; it serves one tenant and is replaced after many calls."""

    def __init__(self, process: asyncio.subprocess.Process, *, owner: Owner) -> None:
        self.owner = owner
        self.calls = 0
        self._process = process

    async def ask(self, ask: Ask) -> Answer:
        """Send one call and read its answer; raises `EOFError` when the process ended."""
        self.calls += 1
        reader, writer = self._process.stdout, self._process.stdin
        if reader is None or writer is None:
            raise EOFError
        data = codec.encode(ask)
        writer.write(_LENGTH.pack(len(data)) + data)
        try:
            await writer.drain()
            (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            return codec.decode_as(await reader.readexactly(length), Answer)
        except (asyncio.IncompleteReadError, ConnectionError) as problem:
            raise EOFError from problem

    def kill(self) -> None:
        """End it without a warning, and with it whatever it has started."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def ended(self) -> int:
        """Wait until it is gone and return how it ended."""
        try:
            async with asyncio.timeout(_END_S):
                return await self._process.wait()
        except TimeoutError:
            self.kill()
            return await self._process.wait()


class PythonTool:
    """Runs code in at most `processes_max` children at once."""

    def __init__(self, *, limits: Limits, mask: Mask, directory: Path) -> None:
        self._limits = limits
        self._mask = mask
        self._directory = directory
        self._leftovers = Leftovers()
        self._free = asyncio.Semaphore(limits.processes_max)
        self._idle: list[Child] = []
        self._count = 0

    async def run(self, call: Call) -> Outcome:
        """Run a task's code."""
        try:
            ask = _ask(call)
        except (ToolFailure, ValueError) as problem:
            error = getattr(problem, "error", None) or failure("validation", str(problem))
            return Outcome(error=error)
        async with self._free:
            try:
                async with asyncio.timeout(call.timeout.total):
                    answer = await self._asked(ask, call)
            except TimeoutError:
                text = f"the code did not end within {call.timeout.total:g} s"
                return Outcome(error=failure("timeout", text, source="python"))
        return self._outcome(answer, call)

    async def _asked(self, ask: Ask, call: Call) -> Answer:
        child = await self._child((call.site.tenant_id, call.site.organization_id))
        is_sound = False
        try:
            answer = await child.ask(ask)
            is_sound = child.calls < _CALLS_PER_PROCESS
        except EOFError:
            code = await child.ended()
            return Answer(
                exception="ProcessEnded",
                message=f"the Python process ended with code {code}: it was killed, crashed or "
                "went over its limits of memory or processor time",
            )
        finally:
            if is_sound:
                self._idle.append(child)
            else:
                self._dismiss(child)
        return answer

    async def _child(self, owner: Owner) -> Child:
        """Take the tenant's own idle process, or start one in place of another tenant's."""
        for index in range(len(self._idle) - 1, -1, -1):
            if self._idle[index].owner == owner:
                return self._idle.pop(index)
        if self._count >= self._limits.processes_max and self._idle:
            self._dismiss(self._idle.pop(0))
        return await self._start(owner)

    async def _start(self, owner: Owner) -> Child:
        self._count += 1
        home = Path(tempfile.mkdtemp(dir=self._directory))
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-m",
            "noetl_worker.sandbox",
            str(self._limits.memory_bytes),
            str(self._limits.files_max),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(home),
                "TMPDIR": str(home),
                "LANG": "C.UTF-8",
            },
            cwd=home,
            start_new_session=True,
        )
        return Child(process, owner=owner)

    def _dismiss(self, child: Child) -> None:
        self._count -= 1
        child.kill()
        self._leftovers.add(child.ended())

    def _outcome(self, answer: Answer, call: Call) -> Outcome:
        if answer.log:
            log.info(
                "task output",
                **{names.FIELD_EXECUTION: call.site.execution_id, names.FIELD_STEP: call.site.step},
                task=call.task,
                text=self._mask.text(answer.log),
            )
        if answer.missing is not None:
            text = f"module '{answer.missing}' is not installed on this worker"
            return Outcome(error=failure("missing_dependency", text, source="python"))
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


def _ask(call: Call) -> Ask:
    """Describe one call; raises `ToolFailure` or `ValueError`."""
    source = _source(call.fields)
    libs, required = _libs(call.fields.get("libs"))
    return Ask(
        code=source,
        inputs=call.input,
        execution_id=call.site.execution_id,
        cpu_s=int(call.timeout.total) + 1,
        iterator=call.iterator,
        named=call.named,
        libs=libs,
        required=required,
    )


def _source(fields: dict[str, Any]) -> str:
    if fields.get("code_b64") is not None:
        return b64decode(str(fields["code_b64"]), validate=True).decode()
    source = fields.get("code")
    if not isinstance(source, str):
        raise ToolFailure(failure("validation", "field 'code' must be Python source"))
    return source


def _libs(libs: Any) -> tuple[dict[str, Any], list[str]]:
    if isinstance(libs, list):
        return {}, [str(name).replace("-", "_") for name in libs]
    return (libs if isinstance(libs, dict) else {}), []


@asynccontextmanager
async def open_python(*, limits: Limits, mask: Mask) -> AsyncIterator[PythonTool]:
    """Hold the child processes while the block runs."""
    directory = Path(tempfile.mkdtemp(prefix="noetl-python-"))
    tool = PythonTool(limits=limits, mask=mask, directory=directory)
    try:
        yield tool
    finally:
        await tool.close()
        shutil.rmtree(directory, ignore_errors=True)
