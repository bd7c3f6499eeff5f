"""One call of user code: its names, its arguments, its result."""

import asyncio
import importlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import cache, lru_cache
from importlib import metadata
from typing import Any

from msgspec import Struct

from noetl_contracts.plain import plain
from noetl_worker.sandbox.source import BODY, FILE, Program, compile_source
from noetl_worker.sandbox.table_results import show_tables

_END = object()

MODULES = (
    *("json", "os", "sys", "re", "math", "time", "datetime", "uuid", "random", "hashlib"),
    *("base64", "logging", "asyncio", "collections", "itertools", "functools"),
)


class Ask(Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class Answer(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of it; without `exception` it is the result.

    `line` is that of the source which raised, 0 where none did; `lacks_network` and
    `absent_module` say what the code looked for in vain. `result_bytes` is the size of a result
    that is too large to be sent, `lacking` the walls that the system did not grant; a process that
    is spent must not serve another call. With `rows` it is no answer yet: the code goes on.
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
    missing: str | None = None
    result_bytes: int = 0
    lacking: list[str] = []
    is_spent: bool = False
    rows: list[Any] | None = None
    has_streamed: bool = False


class Streamed(Struct, frozen=True):
    """Stands for the result of code whose rows were handed over while it ran."""


HandOver = Callable[[list[Any]], None]


class MissingDependency(Exception):  # noqa: N818 - it names what is missing
    """A module that the code asks for is not installed."""


class ReadOnly(dict[str, Any]):
    """A mapping that user code reads; writing to it would reach nobody."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("context is read-only: return what shall be kept")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse


compiled: Callable[[str, tuple[str, ...], str], Program] = lru_cache(maxsize=256)(compile_source)


def call(ask: Ask, hand_over: HandOver) -> Any:
    """Run user code and return its result as JSON-able values; raises whatever it raises.

    What a generator of a task that streams yields is handed over, and the result is `Streamed`.
    """
    sys.path[:0] = ask.paths
    program = compiled(ask.code, tuple(ask.inputs), ask.file)
    names = _names(ask)
    outcome = _outcome(program, names, ask)
    if ask.window_rows and inspect.isgenerator(outcome):
        return _poured(outcome, hand_over, ask.window_rows)
    if ask.window_rows and inspect.isasyncgen(outcome):
        with asyncio.Runner() as runner:
            return _poured(_stepping(outcome, runner), hand_over, ask.window_rows)
    return plain(show_tables(outcome))


def _poured(items: Iterable[Any], hand_over: HandOver, size: int) -> Streamed:
    waiting: list[Any] = []
    for item in items:
        waiting += item if isinstance(item, list) else [item]
        while len(waiting) >= size:
            hand_over(plain(waiting[:size]))
            del waiting[:size]
        if isinstance(item, list) and waiting:
            hand_over(plain(waiting))
            waiting = []
    if waiting:
        hand_over(plain(waiting))
    return Streamed()


def _stepping(items: AsyncIterator[Any], runner: asyncio.Runner) -> Iterator[Any]:
    """Step through an asynchronous generator from synchronous code."""

    async def following() -> Any:
        return await anext(items, _END)

    while (item := runner.run(following())) is not _END:
        yield item


def _outcome(program: Program, names: dict[str, Any], ask: Ask) -> Any:
    _run_module(program, names)
    if program.contract == "body":
        bound = {name: ask.inputs[name] for name in program.parameters}
        return _finished(names[BODY](**bound), streams=bool(ask.window_rows))
    if program.contract == "main":
        returned = _finished(_call_main(names["main"], ask), streams=bool(ask.window_rows))
        if returned is not None:
            return returned
    return names.get("result") if program.assigns_result else None


def _run_module(program: Program, names: dict[str, Any]) -> None:
    outcome = eval(program.code, names)  # noqa: S307 - running user code is what this process is for
    if program.is_awaited:
        asyncio.run(outcome)


def _names(ask: Ask) -> dict[str, Any]:
    """Make the namespace that serves the code as globals and locals."""
    names: dict[str, Any] = {"__name__": "__noetl__", **_modules()}
    for alias, wanted in ask.libs.items():
        names[alias] = _imported(wanted)
    for distribution in ask.required:
        _require(distribution)
    names.update(args=ask.inputs, inputs=ask.inputs, input_data=ask.inputs)
    names["execution_id"] = ask.execution_id
    if "context" in ask.named:
        names["context"] = ReadOnly(ask.named["context"])
    names.update(ask.iterator)
    names.update(ask.inputs)
    return names


@cache
def _modules() -> dict[str, Any]:
    """Import what all code has without asking for it."""
    return {name: importlib.import_module(name) for name in MODULES}


def _imported(wanted: Any) -> Any:
    if not isinstance(wanted, dict):
        return _module(str(wanted))
    source, name = str(wanted["from"]), str(wanted["import"])
    module = _module(source)
    if hasattr(module, name):
        return getattr(module, name)
    # What a package holds may be a module that nobody has imported yet.
    return _module(f"{source}.{name}")


def _require(distribution: str) -> None:
    """Check that a distribution is installed, or a module of its name."""
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        try:
            _module(distribution.replace("-", "_"))
        except MissingDependency as problem:
            raise MissingDependency(distribution) from problem


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as problem:
        raise MissingDependency(name) from problem


def _call_main(main: Callable[..., Any], ask: Ask) -> Any:
    """Bind the parameters of `main` by name."""
    known = {**ask.named, **ask.iterator, "execution_id": ask.execution_id}
    if "context" in known:
        known["context"] = ReadOnly(known["context"])
    known |= dict.fromkeys(("input_data", "args", "inputs"), ask.inputs)
    known |= ask.inputs
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
        if name not in known:
            if parameter.default is inspect.Parameter.empty:
                raise TypeError(
                    f"main() asks for '{name}', which is not an input of the task: "
                    "add it to 'input' or give it a default"
                )
            continue
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            positional.append(known[name])
        else:
            by_name[name] = known[name]
    return main(*positional, **by_name)


def _finished(outcome: Any, *, streams: bool) -> Any:
    """Wait for a coroutine and gather what a generator yields, unless that is to stream."""
    if streams and (inspect.isgenerator(outcome) or inspect.isasyncgen(outcome)):
        return outcome
    if inspect.iscoroutine(outcome):
        return asyncio.run(outcome)
    if inspect.isgenerator(outcome):
        return _gathered(list(outcome))
    if inspect.isasyncgen(outcome):

        async def gather() -> list[Any]:
            return [item async for item in outcome]

        return _gathered(asyncio.run(gather()))
    return outcome


def _gathered(items: list[Any]) -> dict[str, Any]:
    rows: list[Any] = []
    for item in items:
        rows.extend(item if isinstance(item, list) else [item])
    columns = list(rows[0]) if rows and isinstance(rows[0], dict) else []
    return {"columns": columns, "rows": rows, "row_count": len(rows)}
