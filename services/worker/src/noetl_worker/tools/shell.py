"""The `shell` tool: scripts one after another, each the leader of its own session."""

import asyncio
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from noetl_chassis.blocking_work import run_in_thread
from noetl_chassis.clock import Clock
from noetl_contracts.errors import ErrorObject
from noetl_storage.process import removal
from noetl_worker.domain.failures import ToolFailure, build_error, classify_file_error
from noetl_worker.domain.text_values import format_text
from noetl_worker.payloads.task_timeout import task_timeout
from noetl_worker.task_logs.task_log import TaskLogPort
from noetl_worker.tools.calls import child_process
from noetl_worker.tools.calls.call import Call, Outcome
from noetl_worker.tools.calls.child_process import CapturedOutput, OutputTooLong, ProcessLaunch
from noetl_worker.tools.scripts.script_loader import ScriptLoader

ALLOWED_SETTING = "NOETL_WORKER_SHELL_ALLOWED"
_SHELL = "/bin/sh"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STDERR_SHOWN = 200
_STDERR_LINES_MAX = 10
_STDERR_CHARACTERS_MAX = 4_000
# The kernel's bound for one argument is 128 KiB.
_ARGUMENT_BYTES_MAX = 120_000
_REMOVAL_S = 60.0

log = structlog.get_logger(__name__)


class ShellLimits(Struct, frozen=True, kw_only=True):
    """What scripts may use; nothing at all unless `is_allowed`."""

    is_allowed: bool = False
    scripts_max: int = 8
    output_bytes_max: int = 16 * 1024 * 1024
    memory_bytes: int = 4 * 1024**3
    processes_max: int = 512
    files_max: int = 1024
    file_bytes: int = 4 * 1024**3
    grace_s: float = 5.0
    environ: dict[str, str] = {}


class ScriptRun(Struct, frozen=True, kw_only=True):
    """One script that was started; without a code it was ended from outside."""

    script: str
    stdout: str
    stderr: str
    returncode: int | None
    duration_ms: float


class ShellPlan(Struct, frozen=True, kw_only=True):
    """The fields of a task, checked."""

    scripts: tuple[str, ...]
    shell: str
    environ: dict[str, str]
    stdin: bytes


class ScriptPlace(Struct, frozen=True, kw_only=True):
    """The directory in which scripts run, and the folders of files that they see."""

    directory: Path
    visible_folders: tuple[Path, ...]


class ShellTool:
    """Runs scripts where an operator allows it."""

    def __init__(
        self,
        *,
        limits: ShellLimits,
        directory: Path,
        folders: tuple[str, ...],
        scripts: ScriptLoader,
        clock: Clock,
    ) -> None:
        self._limits = limits
        # Where the home of each task is made.
        self._directory = directory
        # What scripts may read besides the system's folders and their own.
        self._folders = folders
        self._scripts = scripts
        self._clock = clock
        self._free = asyncio.Semaphore(limits.scripts_max)

    async def run(self, call: Call) -> Outcome:
        """Run every script of a task, up to the first that fails."""
        if not self._limits.is_allowed:
            return Outcome(error=_build_not_allowed_error())
        script_runs: list[ScriptRun] = []
        try:
            async with self._free, task_timeout(call.timeout.total):
                plan = await self._build_plan(call)
                place = await _find_place(call)
                async with self._hold_home() as home:
                    for script in plan.scripts:
                        launch = self._build_launch(script, plan, place, home)
                        await self._run_script(script, launch, script_runs, call.log)
                        if script_runs[-1].returncode != 0:
                            break
        except ToolFailure as problem:
            return Outcome(error=problem.error)
        except TimeoutError:
            text = f"the scripts did not end within {call.timeout.total:g} s"
            return _build_failed_outcome(build_error("timeout", text, source="shell"), script_runs)
        except OutputTooLong:
            text = (
                f"a script wrote more than {self._limits.output_bytes_max} bytes: "
                "write to a file, or store the data with an artifact task"
            )
            return _build_failed_outcome(
                build_error("payload_too_large", text, source="shell"), script_runs
            )
        except OSError as problem:
            text = f"the script cannot be started: {problem}"
            return _build_failed_outcome(build_error("config", text, source="shell"), script_runs)
        return _build_outcome(script_runs, len(plan.scripts))

    @asynccontextmanager
    async def _hold_home(self) -> AsyncIterator[Path]:
        """Hold a private directory, removed afterwards with all that scripts left there."""
        home = Path(await run_in_thread(tempfile.mkdtemp, dir=self._directory))
        try:
            yield home
        finally:
            if not await run_in_thread(removal.remove_folder, home, within_s=_REMOVAL_S):
                log.warning("files of shell tasks are left on the disk", home=str(home))

    async def _build_plan(self, call: Call) -> ShellPlan:
        """Check a task's fields; raises `ToolFailure`."""
        fields = call.fields
        source = fields.get("cmds")
        if fields.get("script") is not None:
            source = await self._scripts.load_text(fields["script"], call)
        scripts: list[Any] = source if isinstance(source, list) else [source]
        if not scripts or any(not isinstance(script, str) for script in scripts):
            raise _build_invalid_failure("field 'cmds' must be a script or a list of scripts")
        shell = fields.get("shell") or _SHELL
        if not isinstance(shell, str) or not Path(shell).is_absolute():
            raise _build_invalid_failure(
                f"field 'shell' must be the absolute path of a shell, not {shell!r}"
            )
        stdin = fields.get("stdin")
        plan = ShellPlan(
            scripts=tuple(scripts),
            shell=shell,
            environ=_parse_environ(fields.get("env")),
            stdin=b"" if stdin is None else format_text(stdin).encode(),
        )
        _check_texts(plan)
        return plan

    async def _run_script(
        self,
        script: str,
        launch: ProcessLaunch,
        script_runs: list[ScriptRun],
        task_log: TaskLogPort,
    ) -> None:
        """Run one script and note what came of it, also when it was ended."""
        bytes_max = self._limits.output_bytes_max - sum(
            _count_characters(script_run) for script_run in script_runs
        )
        captured = CapturedOutput(bytes_max, task_log)
        started_s = self._clock.monotonic_s()
        code: int | None = None
        try:
            code = await child_process.run_process(launch, captured)
        finally:
            task_log.finish_lines()
            script_runs.append(
                ScriptRun(
                    script=script,
                    stdout=captured.stdout.decode(errors="replace"),
                    stderr=captured.stderr.decode(errors="replace"),
                    returncode=code,
                    duration_ms=(self._clock.monotonic_s() - started_s) * 1000,
                )
            )

    def _build_launch(
        self, script: str, plan: ShellPlan, place: ScriptPlace, home: Path
    ) -> ProcessLaunch:
        limits = self._limits
        # The private directory comes before that of the worker, and what the task says before both.
        environ = {**limits.environ, "TMPDIR": str(home), "HOME": str(home), **plan.environ}
        walls = {
            # The interpreter of the launcher makes up a locale where none is set.
            "absent": sorted({"LC_CTYPE"} - environ.keys()),
            "memory_bytes": limits.memory_bytes,
            "processes_max": limits.processes_max,
            "files_max": limits.files_max,
            "file_bytes": limits.file_bytes,
            "network": True,
            "read": [*self._folders, *_list_program_folders(limits.environ)],
            "write": [str(folder) for folder in (home, *place.visible_folders)],
        }
        return ProcessLaunch(
            command=(plan.shell, "-c", script),
            environ=environ,
            directory=place.directory,
            stdin=plan.stdin,
            grace_s=limits.grace_s,
            walls=walls,
        )


def _list_program_folders(environ: dict[str, str]) -> list[str]:
    """List where the worker's own `PATH` finds programs; a task cannot add to them."""
    paths = [Path(folder) for folder in environ.get("PATH", "").split(os.pathsep)]
    return [str(folder) for folder in paths if folder.is_absolute() and folder.name]


async def _find_place(call: Call) -> ScriptPlace:
    """Return where the scripts run: with the execution's files, or in the folder that `cwd` names.

    Raises `ToolFailure`.
    """
    # A process that has left its script's group may go on in it.
    folder = await call.task_files.fetch_folder(is_exposed=True)
    visible_folders: tuple[Path, ...] = (folder,)
    cwd = call.fields.get("cwd")
    if cwd is None:
        return ScriptPlace(directory=folder, visible_folders=visible_folders)
    if cwd in (".", "./"):
        return ScriptPlace(directory=folder, visible_folders=visible_folders)
    name = call.task_files.parse_name(cwd)
    if name.is_of_organization:
        directory = await call.task_files.fetch_path(name)
        visible_folders = (folder, directory)
    else:
        directory = folder / name.path
    try:
        await run_in_thread(directory.mkdir, parents=True, exist_ok=True)
    except OSError as problem:
        raise ToolFailure(classify_file_error(problem, str(cwd), source="shell")) from problem
    if not directory.resolve().is_relative_to(visible_folders[-1].resolve()):
        raise _build_invalid_failure(f"field 'cwd': {cwd!r:.120} leads out of its folder")
    return ScriptPlace(directory=directory, visible_folders=visible_folders)


def _check_texts(plan: ShellPlan) -> None:
    """Refuse what the system cannot hand to a process; raises `ToolFailure`."""
    texts = (*plan.scripts, *plan.environ.values())
    if any("\0" in text for text in texts):
        raise _build_invalid_failure("scripts and 'env' cannot hold NUL characters")
    if any(len(text.encode()) > _ARGUMENT_BYTES_MAX for text in texts):
        text = f"a script or variable has at most {_ARGUMENT_BYTES_MAX} bytes: pass data by 'stdin'"
        raise ToolFailure(build_error("limit", text, code="SCRIPT_BYTES", source="shell"))


def _parse_environ(env: Any) -> dict[str, str]:
    if env is None:
        return {}
    if not isinstance(env, dict):
        raise _build_invalid_failure("field 'env' must be a mapping")
    wrong_names = [name for name in env if not _NAME.fullmatch(name)]
    if wrong_names:
        raise _build_invalid_failure(
            f"field 'env': '{wrong_names[0]}' is not the name of a variable"
        )
    return {name: format_text(value) for name, value in env.items() if value is not None}


def _build_invalid_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("validation", text, source="shell"))


def _build_not_allowed_error() -> ErrorObject:
    text = (
        f"shell tasks are not allowed on this worker: {ALLOWED_SETTING}=true allows them, for a "
        "stack `noetl up --set WORKER_SHELL_ALLOWED=true`"
    )
    return build_error("config", text, source="shell")


def _count_characters(script_run: ScriptRun) -> int:
    return len(script_run.stdout) + len(script_run.stderr)


def _build_data(script_runs: list[ScriptRun]) -> dict[str, Any]:
    stdout = "".join(script_run.stdout for script_run in script_runs)
    code = script_runs[-1].returncode if script_runs else None
    return {
        "stdout": stdout,
        "stderr": "".join(item.stderr for item in script_runs),
        "returncode": code,
        "exit_code": code,
        "text": stdout.strip(),
        "duration_ms": sum(item.duration_ms for item in script_runs),
        "results": [_build_script_result(item) for item in script_runs],
    }


def _build_script_result(script_run: ScriptRun) -> dict[str, Any]:
    return {
        "stdout": script_run.stdout,
        "stderr": script_run.stderr,
        "returncode": script_run.returncode,
        "duration_ms": script_run.duration_ms,
    }


def _build_failed_outcome(error: ErrorObject, script_runs: list[ScriptRun]) -> Outcome:
    return (
        Outcome(error=error, data=_build_data(script_runs)) if script_runs else Outcome(error=error)
    )


def _build_outcome(runs: list[ScriptRun], count: int) -> Outcome:
    code = runs[-1].returncode
    if code == 0:
        return Outcome(data=_build_data(runs))
    end_text = f"was ended by signal {-code}" if code and code < 0 else f"ended with code {code}"
    lines = runs[-1].stderr.strip().splitlines()
    reason = f": {lines[-1][-_STDERR_SHOWN:]}" if lines else ""
    text = f"script {len(runs)} of {count} {end_text}{reason}"
    details = {"returncode": code, "script": len(runs), "stderr": _pick_last_lines(lines)}
    error = build_error("shell", text, code=str(code), source="shell", details=details)
    return _build_failed_outcome(error, runs)


def _pick_last_lines(lines: list[str]) -> list[str]:
    """Return the last lines of standard error, each whole: a line may hold a secret to mask."""
    last_lines: list[str] = []
    room = _STDERR_CHARACTERS_MAX
    for line in reversed(lines[-_STDERR_LINES_MAX:]):
        room -= len(line)
        if room < 0:
            break
        last_lines.insert(0, line)
    return last_lines
