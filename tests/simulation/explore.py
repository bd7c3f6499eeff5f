"""Run many seeds on every core, or one with its trace: `python -m tests.simulation.explore`."""

import argparse
import gc
import itertools
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor

from tests.simulation.world import Outcome, simulate

_BATCH = 10
_SHOWN_MAX = 20


def main() -> int:
    """Run what was asked for; 1 when an invariant was broken."""
    arguments = argparse.ArgumentParser(prog="python -m tests.simulation.explore")
    arguments.add_argument("--seed", type=int, help="run this seed alone and print its trace")
    arguments.add_argument("--seeds", type=int, default=2000, help="how many seeds to run")
    arguments.add_argument("--first", type=int, default=0, help="the first of them")
    arguments.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin none after these"
    )
    given = arguments.parse_args()
    if given.seed is not None:
        outcome = simulate(given.seed, keeps_trace=True)
        _say(outcome.trace)
        return _tell([outcome], 0.0)
    begun = time.monotonic()
    found = explore(given.first, given.seeds, processes=given.processes, seconds=given.seconds)
    outcomes = []
    for outcome in found:
        outcomes.append(outcome)
        if outcome.violations:
            _say(f"SEED={outcome.seed} {outcome.violations[0]}")
    return _tell(outcomes, time.monotonic() - begun)


def explore(
    first: int, count: int, *, processes: int, seconds: float = float("inf")
) -> Iterator[Outcome]:
    """Run seeds side by side; none is begun after so many seconds."""
    deadline = time.monotonic() + seconds
    places = iter(range(first, first + count, _BATCH))
    with ProcessPoolExecutor(processes) as pool:
        batches: deque[Future[list[Outcome]]] = deque()
        while True:
            for place in itertools.islice(places, processes + 1 - len(batches)):
                if time.monotonic() < deadline:
                    batches.append(pool.submit(_batch, place, min(_BATCH, first + count - place)))
            if not batches:
                return
            yield from batches.popleft().result()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _batch(first: int, count: int) -> list[Outcome]:
    outcomes = [simulate(seed) for seed in range(first, first + count)]
    # What a seed leaves refers to itself and is found late: thousands of seeds held gigabytes.
    gc.collect()
    return outcomes


def _tell(outcomes: list[Outcome], wall_s: float) -> int:
    broken = [outcome for outcome in outcomes if outcome.violations]
    faults = sum((Counter(outcome.faults) for outcome in outcomes), Counter[str]())
    _say(
        f"{len(outcomes)} seeds in {wall_s:.0f} s: {len(broken)} broke an invariant; "
        f"{sum(outcome.events for outcome in outcomes)} events, "
        f"{sum(outcome.steps for outcome in outcomes)} steps, "
        f"{sum(outcome.virtual_s for outcome in outcomes) / 3600:.1f} simulated hours"
    )
    _say("faults: " + ", ".join(f"{name} {many}" for name, many in sorted(faults.items())))
    for item in broken[:_SHOWN_MAX]:
        _say(f"make test/simulation SEED={item.seed}  # {item.violations[0]}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
