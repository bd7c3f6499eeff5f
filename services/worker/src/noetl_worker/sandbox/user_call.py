"""One call of user code: names and imports, arguments, result or exception."""

import asyncio
import errno
import importlib
import inspect
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

from msgspec import Struct

from noetl_contracts.json_values import to_json_result
from noetl_worker.sandbox.source import BODY, FILE, Program, compile_source, read_user_traceback
from noetl_worker.sandbox.table_results import show_tables

_END = object()

MODULES = (
    *("json", "os", "sys", "re", "math", "time", "datetime", "uuid", "random", "hashlib"),
    *("base64", "logging", "asyncio", "collections", "itertools", "functools"),
)
HandOver = Callable[[list[Any]], None]
compiled: Callable[[str, tuple[str, ...], str], Program] = lru_cache(maxsize=256)(compile_source)
_CHAIN_MAX = 8
_UNREACHABLE = frozenset({errno.ENETUNREACH, errno.EACCES, errno.EPERM})
_CLOSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EXDEV})
_EXIT_CHARACTERS_MAX = 2_000


class CallRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the worker wants run; `named` holds surroundings that the code mentions.

    `file` is what tracebacks call the code.
    With `window_rows` a generator streams: so many rows are handed over together, or fewer.
    """

    code: str
    inputs: dict[str, Any]
    execution_id: str
    cpu_s: int
    iterator: dict[str, Any] = {}
    named: dict[str, Any] = {}
    libs: dict[str, Any] = {}
    required: list[str] = []
    paths: list[str] = []
    window_rows: int = 0
    file: str = FILE


class CallAnswer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of it; without `exception` it is the result.

    `line` is that of the source which raised, 0 where none did; `lacks_network` and
    `absent_module` say what the code looked for in vain, `is_outside` that it was a file outside
    the folder of the task. `result_bytes` is the size of a result that is too large to be sent; a
    process that is spent must not serve another call. With `rows` it is no answer yet: the code
    goes on.
    """

    result: Any = None
    exception: str | None = None
    bases: list[str] = []
    message: str = ""
    traceback: str = ""
    line: int = 0
    line_text: str = ""
    lacks_network: bool = False
    absent_module: str = ""
    is_outside: bool = False
    missing: str | None = None
    result_bytes: int = 0
    is_spent: bool = False
    rows: list[Any] | None = None
    has_streamed: bool = False


class ProcessReady(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a process says before its first call: the walls that it lacks, and why."""

    lacking: dict[str, str] = {}


class StreamedResult(Struct, frozen=True):
    """Stands for the result of code whose rows were handed over while it ran."""


class MissingDependency(Exception):  # noqa: N818 - it names what is missing
    """A module that the code asks for is not installed."""


class ReadOnly(dict[str, Any]):
    """A mapping that user code reads; writing to it would reach nobody."""

    def _refuse_write(self, *_: Any, **__: Any) -> Any:
        raise TypeError("context is read-only: return what shall be kept")

    __setitem__ = __delitem__ = __ior__ = _refuse_write
    clear = pop = popitem = setdefault = update = _refuse_write


def run_user_call(ask: CallRequest, hand_over: HandOver) -> Any:
    """Run user code and return its result as JSON-able values; its exceptions pass through.

    What a generator of a task that streams yields is handed over, and the result is
    `StreamedResult`.
    """
    sys.path[:0] = ask.paths
    program = compiled(ask.code, tuple(ask.inputs), ask.file)
    names = _build_names(ask)
    outcome = _run_program(program, names, ask)
    if ask.window_rows and inspect.isgenerator(outcome):
        return _hand_over_items(outcome, hand_over, ask.window_rows)
    if ask.window_rows and inspect.isasyncgen(outcome):
        with asyncio.Runner() as runner:
            return _hand_over_items(_step_through(outcome, runner), hand_over, ask.window_rows)
    return to_json_result(show_tables(outcome))


def _hand_over_items(items: Iterable[Any], hand_over: HandOver, size: int) -> StreamedResult:
    pending_items: list[Any] = []
    for item in items:
        pending_items += item if isinstance(item, list) else [item]
        while len(pending_items) >= size:
            hand_over(to_json_result(pending_items[:size]))
            del pending_items[:size]
        if isinstance(item, list) and pending_items:
            hand_over(to_json_result(pending_items))
            pending_items = []
    if pending_items:
        hand_over(to_json_result(pending_items))
    return StreamedResult()


def _step_through(items: AsyncIterator[Any], runner: asyncio.Runner) -> Iterator[Any]:
    """Step through an asynchronous generator from synchronous code."""

    async def next_item() -> Any:
        return await anext(items, _END)

    while (item := runner.run(next_item())) is not _END:
        yield item


def _run_program(program: Program, names: dict[str, Any], ask: CallRequest) -> Any:
    _run_module(program, names)
    if program.contract == "body":
        bound = {name: ask.inputs[name] for name in program.parameters}
        return _finish_outcome(names[BODY](**bound), streams=bool(ask.window_rows))
    if program.contract == "main":
        returned = _finish_outcome(_call_main(names["main"], ask), streams=bool(ask.window_rows))
        if returned is not None:
            return returned
    return names.get("result") if program.assigns_result else None


def _run_module(program: Program, names: dict[str, Any]) -> None:
    outcome = eval(program.code, names)  # noqa: S307 - running user code is what this process is for
    if program.is_awaited:
        asyncio.run(outcome)


def _build_names(ask: CallRequest) -> dict[str, Any]:
    """Make the namespace that serves the code as globals and locals."""
    names: dict[str, Any] = {"__name__": "__noetl__", **_import_modules()}
    for alias, import_spec in ask.libs.items():
        names[alias] = _import_wanted(import_spec)
    for distribution in ask.required:
        _require_distribution(distribution)
    names.update(args=ask.inputs, inputs=ask.inputs, input_data=ask.inputs)
    names["execution_id"] = ask.execution_id
    if "context" in ask.named:
        names["context"] = ReadOnly(ask.named["context"])
    names.update(ask.iterator)
    names.update(ask.inputs)
    return names


@cache
def _import_modules() -> dict[str, Any]:
    """Import what all code has without asking for it."""
    return {name: importlib.import_module(name) for name in MODULES}


def _import_wanted(import_spec: Any) -> Any:
    if not isinstance(import_spec, dict):
        return _import_module(str(import_spec))
    source, name = str(import_spec["from"]), str(import_spec["import"])
    module = _import_module(source)
    if hasattr(module, name):
        return getattr(module, name)
    # What a package holds may be a module that nobody has imported yet.
    return _import_module(f"{source}.{name}")


def _require_distribution(distribution: str) -> None:
    """Check that a distribution is installed, or a module of its name."""
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        try:
            _import_module(distribution.replace("-", "_"))
        except MissingDependency as problem:
            raise MissingDependency(distribution) from problem


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        raise MissingDependency(name) from problem


def _call_main(main: Callable[..., Any], ask: CallRequest) -> Any:
    """Bind the parameters of `main` by name."""
    known_names = {**ask.named, **ask.iterator, "execution_id": ask.execution_id}
    if "context" in known_names:
        known_names["context"] = ReadOnly(known_names["context"])
    known_names |= dict.fromkeys(("input_data", "args", "inputs"), ask.inputs)
    known_names |= ask.inputs
    positional: list[Any] = []
    by_name: dict[str, Any] = {}
    used: set[str] = set()
    for name, parameter in inspect.signature(main).parameters.items():
        match parameter.kind:
            case inspect.Parameter.VAR_POSITIONAL:
                continue
            case inspect.Parameter.VAR_KEYWORD:
                by_name |= {key: item for key, item in ask.inputs.items() if key not in used}
                continue
        used.add(name)
        if name not in known_names:
            if parameter.default is inspect.Parameter.empty:
                raise TypeError(
                    f"main() asks for '{name}', which is not an input of the task: "
                    "add it to 'input' or give it a default"
                )
            continue
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append(known_names[name])
        else:
            by_name[name] = known_names[name]
    return main(*positional, **by_name)


def _finish_outcome(outcome: Any, *, streams: bool) -> Any:
    """Wait for a coroutine and gather what a generator yields, unless that is to stream."""
    if streams and (inspect.isgenerator(outcome) or inspect.isasyncgen(outcome)):
        return outcome
    if inspect.iscoroutine(outcome):
        return asyncio.run(outcome)
    if inspect.isgenerator(outcome):
        return _tabulate_items(list(outcome))
    if inspect.isasyncgen(outcome):

        async def gather_items() -> list[Any]:
            return [item async for item in outcome]

        return _tabulate_items(asyncio.run(gather_items()))
    return outcome


def _tabulate_items(items: list[Any]) -> dict[str, Any]:
    rows: list[Any] = []
    for item in items:
        rows.extend(item if isinstance(item, list) else [item])
    # A later row may have a key that the first has not.
    names = (name for row in rows if isinstance(row, dict) for name in row)
    return {"columns": list(dict.fromkeys(names)), "rows": rows, "row_count": len(rows)}


def describe_exception(
    problem: BaseException,
    *,
    source: str,
    has_network: bool,
    file: str = FILE,
    folder: Path | None = None,
) -> CallAnswer:
    """Turn an exception into an answer whose traceback shows the source's own lines alone."""
    user_traceback = read_user_traceback(problem, source=source, file=file)
    kind = type(problem)
    ending = problem if isinstance(problem, SystemExit) else None
    return CallAnswer(
        exception=kind.__name__,
        bases=[item.__name__ for item in kind.__mro__],
        message=user_traceback.message if ending is None else _describe_exit(ending.code),
        traceback=user_traceback.traceback,
        line=user_traceback.line,
        line_text=user_traceback.line_text,
        lacks_network=not has_network and _is_unreachable(problem),
        absent_module=_find_absent_module(problem),
        is_outside=folder is not None and _is_outside(problem, folder),
        is_spent=ending is not None,
    )


def _describe_exit(code: Any) -> str:
    """Say how code ended itself; `sys.exit` takes a number, or a text that stands for 1."""
    is_number = code is None or isinstance(code, int)
    exit_code = int(code or 0) if is_number else 1
    reason_text = "" if is_number else f" and said {str(code)[:_EXIT_CHARACTERS_MAX]!r}"
    return (
        f"the code ended itself with exit code {exit_code}{reason_text}: return a result "
        "instead, or raise an exception that says what is wrong"
    )


def raise_exits() -> None:
    """Make `os._exit` end the call alone, and tell where it was called, as `sys.exit` does.

    Children of the code, and threads, end as ever.
    """
    end_process, process = os._exit, os.getpid()

    def end_call(status: int) -> NoReturn:
        is_main = threading.current_thread() is threading.main_thread()
        if os.getpid() == process and is_main:
            raise SystemExit(status)
        end_process(status)

    os._exit = end_call


def _is_outside(problem: BaseException, folder: Path) -> bool:
    """Tell whether an exception is of a file outside the folder of a task."""
    if not isinstance(problem, OSError) or problem.errno not in _CLOSED:
        return False
    name = problem.filename
    if not isinstance(name, str) or not name.startswith("/"):
        return False
    return not any(Path(name).is_relative_to(place) for place in (folder, "/proc", "/dev"))


def _find_absent_module(problem: BaseException) -> str:
    """Return the module that an exception did not find, else nothing."""
    name = problem.name if isinstance(problem, ModuleNotFoundError) else None
    return name or ""


def _is_unreachable(problem: BaseException) -> bool:
    """Tell whether an exception, or one that led to it, is of a network that is not there."""
    error: BaseException | None = problem
    for _ in range(_CHAIN_MAX):
        if error is None:
            return False
        if isinstance(error, socket.gaierror):
            return True
        if isinstance(error, OSError) and error.filename is None and error.errno in _UNREACHABLE:
            return True
        error = error.__cause__ or error.__context__
    return False
