"""How fast the processors are at this moment: one that works alone, and all at once.

A virtual machine's processors may be two threads of one core, now and not a minute later, which
no time stolen tells of: then all at once take twice as long as one alone.
"""

import subprocess
import sys
import time
from typing import Any

import msgspec
import psutil
from tests.bench.spread import share

ADDITIONS, TIMES = 400_000, 30


def measure() -> dict[str, Any]:
    """Return how many milliseconds of CPU a loop of additions takes in either case."""
    return {
        "alone_ms": _median_ms(processes=1),
        "together_ms": _median_ms(processes=psutil.cpu_count() or 1),
    }


def shown(found: dict[str, dict[str, Any]]) -> str:
    """Tell what was found before some series, by their names."""
    alone, together = (
        sorted(item[key] for item in found.values()) for key in ("alone_ms", "together_ms")
    )
    return (
        f"Before {', '.join(found)} a loop of {ADDITIONS:,} additions took {alone[0]} to {alone[-1]} ms of CPU on one\n"
        f"processor and {together[0]} to {together[-1]} on all at once, which says how fast the machine was."
    )


def _median_ms(*, processes: int) -> float:
    command = [sys.executable, "-m", __name__]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: S603 - our own command line
        for _ in range(processes)
    ]
    told = [msgspec.json.decode(item.communicate()[0], type=list[float]) for item in running]
    return round(share([ms for each in told for ms in each], 0.5), 1)


def main() -> None:
    """Print what each of so many loops took."""
    found = []
    for _ in range(TIMES):
        began, total = time.process_time(), 0
        for number in range(ADDITIONS):
            total += number
        found.append(1000 * (time.process_time() - began))
    sys.stdout.write(msgspec.json.encode(found).decode())


if __name__ == "__main__":
    main()
