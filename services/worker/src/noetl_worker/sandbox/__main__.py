"""The child process of `python` tasks: reads calls from one pipe and answers on another."""

import os
import resource
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import structs

from noetl_contracts.json_values import build_broken_text_failure
from noetl_storage.process import removal
from noetl_worker.sandbox import call_pipes, confinement, user_call
from noetl_worker.sandbox.task_output import TaskOutput
from noetl_worker.sandbox.user_call import (
    CallAnswer,
    CallRequest,
    MissingDependency,
    ProcessReady,
    StreamedResult,
    run_user_call,
)

ANSWER_BYTES_MAX = 64 * 1024 * 1024
_CPU_SPARE_S = 2
# What takes longer to remove is left to the worker, which ends this process for it.
_TIDY_S = 5.0


def main() -> None:
    """Serve calls one after another."""
    bounds = msgspec.json.decode(sys.argv[1])
    asks, answers = call_pipes.take_pipes(bounds["output"])
    bounds["read"] = [*bounds.get("read", ()), *confinement.list_interpreter_paths()]
    missing_walls = confinement.confine_process(bounds)
    call_pipes.send_frame(msgspec.json.encode(ProcessReady(lacking=missing_walls)), answers)
    call_pipes.add_packages(bounds.get("packages"))
    user_call.raise_exits()
    files = Path.cwd()
    home = Path(bounds["home"])
    output = TaskOutput()
    while data := call_pipes.read_frame(asks):
        ask = msgspec.json.decode(data, type=CallRequest)
        with output.capture_output():
            has_network = bool(bounds.get("network"))
            answer = _answer_call(ask, answers, has_network=has_network, folder=home.parent)
        is_spent = _tidy_home(home, files) or answer.is_spent or bool(ask.paths)
        call_pipes.send_frame(_encode_answer(structs.replace(answer, is_spent=is_spent)), answers)


def _hand_over_rows(rows: list[Any], answers: BinaryIO) -> None:
    """Send rows ahead of the answer; this waits while the worker does not read."""
    try:
        data = msgspec.json.encode(CallAnswer(rows=rows))
    except UnicodeEncodeError:
        raise build_broken_text_failure(rows) from None
    if len(data) > ANSWER_BYTES_MAX:
        if len(rows) == 1:
            raise ValueError(f"a row has {len(data)} bytes, the limit is {ANSWER_BYTES_MAX}")
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            _hand_over_rows(part, answers)
        return
    call_pipes.send_frame(data, answers)


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
    except (TypeError, ValueError, MemoryError) as problem:
        is_text_broken = isinstance(problem, UnicodeEncodeError)
        failure = build_broken_text_failure(answer.result) if is_text_broken else problem
        failed = user_call.describe_exception(failure, source="", has_network=True)
        data = msgspec.json.encode(failed)
    if len(data) > ANSWER_BYTES_MAX:
        data = msgspec.json.encode(CallAnswer(result_bytes=len(data)))
    return data


if __name__ == "__main__":
    main()
