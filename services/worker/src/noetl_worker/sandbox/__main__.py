"""Reads calls from one pipe, answers on another, until the worker closes its end."""

import io
import logging
import os
import resource
import struct
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import structs

from noetl_storage import removal
from noetl_worker.sandbox import confinement, raised
from noetl_worker.sandbox.calling import Answer, Ask, MissingDependency, Streamed, call

LENGTH = struct.Struct(">I")
ANSWER_BYTES_MAX = 64 * 1024 * 1024
LOG_BYTES_MAX = 16 * 1024
_LOG_CUT = f"\n(the rest was left out: a call may print {LOG_BYTES_MAX} bytes)\n"
_CPU_SPARE_S = 2
# What takes longer to remove is left to the worker, which ends this process for it.
_TIDY_S = 5.0


class _Bounded(io.BytesIO):
    """What user code prints, up to a bound."""

    def __init__(self) -> None:
        super().__init__()
        self.is_cut = False

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # bytes alone come here
        room = LOG_BYTES_MAX - self.tell()
        self.is_cut |= len(data) > room
        if room > 0:
            super().write(data[:room])
        return len(data)


class _TaskLog:
    """Stands for standard output and error while a call runs."""

    def __init__(self) -> None:
        self._written = _Bounded()
        self.stream = io.TextIOWrapper(
            self._written, encoding="utf-8", errors="backslashreplace", write_through=True
        )

    def text(self) -> str:
        found = self._written.getvalue().decode(errors="replace")
        return found + _LOG_CUT if self._written.is_cut else found


def main() -> None:
    """Serve calls one after another."""
    bounds = msgspec.json.decode(sys.argv[1])
    asks, answers = _take_pipes()
    lacking = confinement.put_up(bounds)
    _add_packages(bounds.get("packages"))
    files = Path.cwd()
    home = Path(bounds["home"])
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    while head := asks.read(LENGTH.size):
        (length,) = LENGTH.unpack(head)
        ask = msgspec.json.decode(asks.read(length), type=Ask)
        answer = _answered(ask, answers, has_network=bool(bounds.get("network")))
        is_spent = _tidied(home, files) or bool(ask.paths)
        _send(_encoded(structs.replace(answer, lacking=lacking, is_spent=is_spent)), answers)


def _add_packages(folder: str | None) -> None:
    """Find a task's packages before the worker's own, and after those of Python itself."""
    if folder is not None:
        places = enumerate(sys.path)
        first = next((index for index, place in places if "site-packages" in place), len(sys.path))
        sys.path.insert(first, folder)


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the worker's pipes for ourselves: user code finds only /dev/null behind 0 and 1."""
    asks, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    return os.fdopen(asks, "rb"), os.fdopen(answers, "wb")


def _send(data: bytes, answers: BinaryIO) -> None:
    answers.write(LENGTH.pack(len(data)) + data)
    answers.flush()


def _hand_over(rows: list[Any], answers: BinaryIO) -> None:
    """Send rows ahead of the answer; this waits while the worker does not read."""
    data = msgspec.json.encode(Answer(rows=rows))
    if len(data) > ANSWER_BYTES_MAX:
        if len(rows) == 1:
            raise ValueError(f"a row has {len(data)} bytes, the limit is {ANSWER_BYTES_MAX}")
        for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
            _hand_over(part, answers)
        return
    _send(data, answers)


def _answered(ask: Ask, answers: BinaryIO, *, has_network: bool) -> Answer:
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = int(used.ru_utime + used.ru_stime) + ask.cpu_s + _CPU_SPARE_S
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, resource.RLIM_INFINITY))
    log = _TaskLog()
    shown = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = log.stream
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(log.stream)
    try:
        result = call(ask, lambda rows: _hand_over(rows, answers))
        if isinstance(result, Streamed):
            return Answer(has_streamed=True, log=log.text())
        return Answer(result=result, log=log.text())
    except MissingDependency as problem:
        return Answer(missing=str(problem), exception="ModuleNotFoundError", log=log.text())
    except BaseException as problem:  # noqa: BLE001 - whatever user code raises is its answer
        found = raised.describe(problem, source=ask.code, has_network=has_network)
        return structs.replace(found, log=log.text())
    finally:
        sys.stdout, sys.stderr = shown


def _tidied(home: Path, files: Path) -> bool:
    """Remove what a call left in its home; tell whether it left what only our end stops.

    The files of the execution are the worker's to look after.
    """
    try:
        is_empty = _is_bare(home) or removal.emptied(home, within_s=_TIDY_S)
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


def _is_bare(home: Path) -> bool:
    """Tell whether a call has left nothing, as most do."""
    try:
        with os.scandir(home) as entries:
            return next(entries, None) is None
    except OSError:
        return False


def _encoded(answer: Answer) -> bytes:
    try:
        data = msgspec.json.encode(answer)
    except (TypeError, ValueError, UnicodeEncodeError, MemoryError) as problem:
        failed = raised.describe(problem, source="", has_network=True)
        data = msgspec.json.encode(structs.replace(failed, lacking=answer.lacking))
    if len(data) > ANSWER_BYTES_MAX:
        data = msgspec.json.encode(Answer(result_bytes=len(data), lacking=answer.lacking))
    return data


if __name__ == "__main__":
    main()
