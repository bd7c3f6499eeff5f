"""A nursery of producers: forks processes that keep segments until they are killed.

Run as a program it forks one for each line of its input, `<mode> <directory>`, and writes its
number. `written` dies between writing a segment and giving it its name, `linked` right after that
and before anyone could hear of it, `busy` goes on until it is killed, `modest` keeps a few and
waits.
"""

import asyncio
import ctypes
import itertools
import os
import random
import signal
import sys
from pathlib import Path

from tests.support.tiering import open_shared, ref_of

from noetl_chassis.clock import SystemClock

MODEST = 20
DIE_WITH_PARENT = 1


def die(*_: object, **__: object) -> None:
    """End as the kernel ends a process that has used up its memory."""
    os.kill(os.getpid(), signal.SIGKILL)


def linked_and_dead(link: object) -> object:
    """Give a file its name, and die."""

    def run(*args: object, **kwargs: object) -> None:
        link(*args, **kwargs)  # type: ignore[operator]  # os.link as it was
        die()

    return run


async def produce(mode: str, directory: Path) -> None:
    """Keep segments of all sizes."""
    tier = open_shared(directory, clock=SystemClock())
    match mode:
        case "written":
            os.link = die
        case "linked":
            os.link = linked_and_dead(os.link)  # type: ignore[assignment]  # this process is about to die
    for number in itertools.count():
        if mode == "modest" and number == MODEST:
            signal.pause()
        data = random.randbytes(random.randrange(1, 400_000))
        await tier.keep_copy(ref_of(data), data)


def main() -> None:
    """Fork a producer for each line; they end with this process."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        mode, directory = line.split(maxsplit=1)
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
            random.seed(os.getpid())
            asyncio.run(produce(mode, Path(directory.strip())))
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
