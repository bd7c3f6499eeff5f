"""Find each planted defect and write which seed found it: `python -m tests.simulation.hunt`."""

import argparse
import math
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from msgspec import Struct
from tests.simulation.bugs import BUGS, Bug
from tests.simulation.fate import draw_weather
from tests.simulation.world import simulate

PAGE = Path(__file__).parents[2] / "benchmarks" / "simulation.md"
SEEDS_MAX = 1000
_BEGIN, _END = "<!-- planted -->", "<!-- /planted -->"
_WORDS_MAX = 110


class CaughtBug(Struct, frozen=True, kw_only=True):
    """The seed that found a defect, after how many, and what it says; None when none did."""

    bug: int
    seed: int | None
    tried: int
    said: str


def hunt(bug: int, seeds_max: int = SEEDS_MAX) -> CaughtBug:
    """Run seeds with a defect until one objects."""
    tried = 0
    with BUGS[bug].planted():
        for tried, seed in enumerate(candidates(BUGS[bug], seeds_max), start=1):
            outcome = simulate(seed)
            if outcome.violations:
                violation = outcome.violations[0]
                # A patch that does not fit what it replaces is no defect of the planted kind.
                assert ".<locals>." not in violation, f"{BUGS[bug].name}: {violation}"
                return CaughtBug(bug=bug, seed=seed, tried=tried, said=violation)
    return CaughtBug(bug=bug, seed=None, tried=tried, said="")


def candidates(bug: Bug, seeds_max: int) -> list[int]:
    """List the seeds whose weather has what a defect needs, the roughest first."""
    found = []
    for seed in range(seeds_max):
        rates = draw_weather(random.Random(seed)).rates
        if all(fault in rates for fault in bug.needs):
            found.append((-math.prod(_roughness(fault, rates) for fault in bug.needs), seed))
    return [seed for _, seed in sorted(found)]


def _roughness(fault: str, rates: dict[str, float]) -> float:
    return 1 / rates[fault] if rates[fault] > 1 else rates[fault]


def main() -> int:
    """Hunt all defects side by side and write the table; 1 when one was not found."""
    arguments = argparse.ArgumentParser(prog="python -m tests.simulation.hunt")
    arguments.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    arguments.add_argument(
        "--bug", type=int, help="hunt this one alone, by its number in the table"
    )
    given = arguments.parse_args()
    numbers = range(len(BUGS)) if given.bug is None else [given.bug - 1]
    found = []
    with ProcessPoolExecutor(given.processes) as pool:
        for asked_for in as_completed([pool.submit(hunt, number) for number in numbers]):
            one = asked_for.result()
            found.append(one)
            sys.stdout.write(f"{one.bug + 1}. {BUGS[one.bug].name}: {one.seed} {one.said}\n")
            sys.stdout.flush()
    found.sort(key=lambda one: one.bug)
    if given.bug is None:
        _write(found)
    return 0 if all(item.seed is not None for item in found) else 1


def _write(caught_bugs: list[CaughtBug]) -> None:
    lines = ["| # | planted | breaks | needs | found by seed | tried | what it says |"]
    lines.append("|---|---|---|---|---|---|---|")
    for caught_bug in caught_bugs:
        bug = BUGS[caught_bug.bug]
        seed = "none" if caught_bug.seed is None else str(caught_bug.seed)
        needs = ", ".join(bug.needs)
        said = caught_bug.said[:_WORDS_MAX].replace("|", "\\|")
        cells = (caught_bug.bug + 1, bug.name, bug.breaks, needs, seed, caught_bug.tried, said)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    text = PAGE.read_text()
    head, _, rest = text.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    PAGE.write_text(f"{head}{_BEGIN}\n" + "\n".join(lines) + f"\n{_END}{tail}")


if __name__ == "__main__":
    sys.exit(main())
