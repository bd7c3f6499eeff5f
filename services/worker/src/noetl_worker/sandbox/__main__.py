"""The child process of `python` tasks: reads calls from one pipe and answers on another."""

import os
import resource
import struct
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import structs

from noetl_storage.process import removal
from noetl_worker.sandbox import confinement, user_call
from noetl_worker.sandbox.task_output import TaskOutput
from noetl_worker.sandbox.user_call import (
    CallAnswer,
    CallRequest,
    MissingDependency,
    ProcessReady,
    StreamedResult,
    run_user_call,
)

LENGTH = struct.Struct(">I")
ANSWER_BYTES_MAX = 64 * 1024 * 1024
_CPU_SPARE_S = 2
# What takes longer to remove is left to the worker, which ends this process for it.
_TIDY_S = 5.0


def main() -> None:
    """Serve calls one after another."""
    bounds = msgspec.json.decode(sys.argv[1])
    asks, answers = _take_pipes(bounds["output"])
    bounds["read"] = [*bounds.get("read", ()), *confinement.list_interpreter_paths()]
    lacking = confinement.confine_process(bounds)
    _send_frame(msgspec.json.encode(ProcessReady(lacking=lacking)), answers)
    _add_packages(bounds.get("packages"))
    user_call.raise_exits()
    files = Path.cwd()
    home = Path(bounds["home"])
    output = TaskOutput()
    while head := asks.read(LENGTH.size):
        (length,) = LENGTH.unpack(head)
        ask = msgspec.json.decode(asks.read(length), type=CallRequest)
        with output.capture_output():
            has_network = bool(bounds.get("network"))
            answer = _answer_call(ask, answers, has_network=has_network, folder=home.parent)
        is_spent = _tidy_home(home, files) or answer.is_spent or bool(ask.paths)
        _send_frame(_encode_answer(structs.replace(answer, is_spent=is_spent)), answers)


def _add_packages(folder: str | None) -> None:
    """Find a task's packages before the worker's own, and after those of Python itself."""
    if folder is not None:
        places = enumerate(sys.path)
        first = next((index for index, place in places if "site-packages" in place), len(sys.path))
        sys.path.insert(first, folder)


def _take_pipes(output: int) -> tuple[BinaryIO, BinaryIO]:
    """Keep the worker's pipes for ourselves: user code finds /dev/null and its log behind 0 and 1.

    `output` is the descriptor of the pipe for what it writes.
    """
    asks, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.close(nothing)
    os.close(output)
    return os.fdopen(asks, "rb"), os.fdopen(answers, "wb")


def _send_frame(data: bytes, answers: BinaryIO) -> None:
    answers.write(LENGTH.pack(len(data)) + data)
    answers.flush()


def _hand_over_rows(rows: list[Any], answers: BinaryIO) -> None:
    """Send rows ahead of the answer; this waits while the worker does not read."""
    data = msgspec.json.encode(CallAnswer(rows=rows))
    if len(data) > ANSWER_BYTES_MAX:
        if len(rows) == 1:
            raise ValueError(f"a row has {len(data)} bytes, the limit is {ANSWER_BYTES_MAX}")
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            _hand_over_rows(part, answers)
        return
    _send_frame(data, answers)


def _answer_call(
    ask: CallRequest, answers: BinaryIO, *, has_network: bool, folder: Path
) -> CallAnswer:
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = int(used.ru_utime + used.ru_stime) + ask.cpu_s + _CPU_SPARE_S
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, resource.RLIM_INFINITY))
    try:
        result = run_user_call(ask, lambda rows: _hand_over_rows(rows, answers))
        return (
            CallAnswer(has_streamed=True)
            if isinstance(result, StreamedResult)
            else CallAnswer(result=result)
        )
    except MissingDependency as problem:
        return CallAnswer(missing=str(problem), exception="ModuleNotFoundError")
    except BaseException as problem:  # noqa: BLE001 - every exception of user code is its answer
        return user_call.describe_exception(
            problem, source=ask.code, has_network=has_network, file=ask.file, folder=folder
        )


def _tidy_home(home: Path, files: Path) -> bool:
    """Remove what a call left in its home; tell whether it left what only our end stops.

    The files of the execution are the worker's to look after.
    """
    try:
        is_empty = _is_home_empty(home) or removal.empty_folder(home, within_s=_TIDY_S)
        os.chdir(files)
    except OSError:
        is_empty = False
    if not is_empty or threading.active_count() > 1:
        return True
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


def _is_home_empty(home: Path) -> bool:
    """Tell whether a call has left nothing, as most do."""
    try:
        with os.scandir(home) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def _encode_answer(answer: CallAnswer) -> bytes:
    try:
        data = msgspec.json.encode(answer)
    except (TypeError, ValueError, UnicodeEncodeError, MemoryError) as problem:
        failed = user_call.describe_exception(problem, source="", has_network=True)
        data = msgspec.json.encode(failed)
    if len(data) > ANSWER_BYTES_MAX:
        data = msgspec.json.encode(CallAnswer(result_bytes=len(data)))
    return data


if __name__ == "__main__":
    main()
