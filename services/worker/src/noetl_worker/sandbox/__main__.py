"""Reads calls from one pipe, answers on another, until the worker closes its end."""

import ctypes
import io
import logging
import os
import resource
import signal
import struct
import sys
import traceback
from typing import BinaryIO

import msgspec

from noetl_worker.sandbox.calling import Answer, Ask, MissingDependency, call

LENGTH = struct.Struct(">I")
ANSWER_BYTES_MAX = 64 * 1024 * 1024
LOG_CHARACTERS_MAX = 16 * 1024
_DIE_WITH_PARENT = 1
_CPU_SPARE_S = 2


class _TaskLog(io.StringIO):
    """What user code prints, up to a bound."""

    def write(self, text: str) -> int:
        room = LOG_CHARACTERS_MAX - self.tell()
        if room > 0:
            super().write(text[:room])
        return len(text)


def main() -> None:
    """Serve calls one after another."""
    memory_bytes, files_max = (int(argument) for argument in sys.argv[1:3])
    asks, answers = _take_pipes()
    _limit(memory_bytes=memory_bytes, files_max=files_max)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    while head := asks.read(LENGTH.size):
        (length,) = LENGTH.unpack(head)
        ask = msgspec.json.decode(asks.read(length), type=Ask)
        data = _encoded(_answered(ask))
        answers.write(LENGTH.pack(len(data)) + data)
        answers.flush()


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Keep the worker's pipes for ourselves: user code finds only /dev/null behind 0 and 1."""
    asks, answers = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    return os.fdopen(asks, "rb"), os.fdopen(answers, "wb")


def _limit(*, memory_bytes: int, files_max: int) -> None:
    """Bound memory and files, and end together with the worker."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _answered(ask: Ask) -> Answer:
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = int(used.ru_utime + used.ru_stime) + ask.cpu_s + _CPU_SPARE_S
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, resource.RLIM_INFINITY))
    log = _TaskLog()
    shown = sys.stdout, sys.stderr
    sys.stdout = sys.stderr = log
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(log)
    try:
        return Answer(result=call(ask), log=log.getvalue())
    except MissingDependency as problem:
        return Answer(missing=str(problem), exception="ModuleNotFoundError")
    except BaseException as problem:  # noqa: BLE001 - whatever user code raises is its answer
        return _raised(problem, log.getvalue())
    finally:
        sys.stdout, sys.stderr = shown


def _raised(problem: BaseException, log: str) -> Answer:
    kind = type(problem)
    lines = traceback.format_exception(kind, problem, problem.__traceback__)
    own = [line for line in lines if "noetl_worker" not in line]
    return Answer(
        exception=kind.__name__,
        bases=[base.__name__ for base in kind.__mro__],
        message=str(problem),
        traceback="".join(own)[-8192:],
        log=log,
    )


def _encoded(answer: Answer) -> bytes:
    try:
        data = msgspec.json.encode(answer)
    except (TypeError, ValueError, UnicodeEncodeError, MemoryError) as problem:
        data = msgspec.json.encode(_raised(problem, ""))
    if len(data) > ANSWER_BYTES_MAX:
        too_large = ValueError(f"the result is longer than {ANSWER_BYTES_MAX} bytes")
        data = msgspec.json.encode(_raised(too_large, ""))
    return data


if __name__ == "__main__":
    main()
