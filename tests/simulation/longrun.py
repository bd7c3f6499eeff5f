"""Run very many seeds, going on where it stopped: `python -m tests.simulation.longrun`.

A file keeps a line for each batch that is done, with the commit that it ran on; every line is
complete or does not count. Seeds that broke an invariant are run again by `--again`, on the commit
that repairs them; `--write` says in docs/simulation.md what came of all.
"""

import argparse
import multiprocessing
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct
from tests.simulation.hunt import PAGE
from tests.simulation.world import simulate

SEEDS = 100_000
BATCH = 100
# A process is replaced after so many batches: nothing that it might have kept adds up.
_BATCHES_PER_PROCESS = 50
_BEGIN, _END = "<!-- long run -->", "<!-- /long run -->"
_SAID_MAX = 300


class Broken(Struct, frozen=True, kw_only=True):
    """A seed that broke an invariant, and what was said of it."""

    seed: int
    said: str


class Batch(Struct, frozen=True, kw_only=True):
    """What came of `count` seeds from `first` on; `is_again` when they had been run before."""

    first: int
    count: int
    commit: str
    events: int
    steps: int
    virtual_s: float
    faults: dict[str, int]
    broken: tuple[Broken, ...] = ()
    is_again: bool = False


def main() -> int:
    """Run what is missing; 1 when a seed broke an invariant and was not run well again."""
    asked = argparse.ArgumentParser(prog="python -m tests.simulation.longrun")
    asked.add_argument("--seeds", type=int, default=SEEDS, help="how many seeds in all, from 0 on")
    asked.add_argument("--kept", type=Path, default=Path("longrun.jsonl"), help="what is done")
    asked.add_argument("--processes", type=int, default=1)
    asked.add_argument("--again", action="store_true", help="run the broken seeds, and no others")
    asked.add_argument("--write", action="store_true", help="write the page, and run nothing")
    given = asked.parse_args()
    kept: Path = given.kept
    if not given.write:
        done = read(kept)
        todo = again(done) if given.again else missing(done, given.seeds)
        for batch in _run(todo, is_again=given.again, processes=given.processes):
            with kept.open("ab") as file:
                file.write(msgspec.json.encode(batch) + b"\n")
            _say(batch)
    done = read(kept)
    text = PAGE.read_text()
    head, _, rest = text.partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    PAGE.write_text(f"{head}{_BEGIN}\n{told(done)}\n{_END}{tail}")
    return 1 if still_broken(done) else 0


def read(kept: Path) -> list[Batch]:
    """Read the batches that are done; a line that was cut off is none."""
    if not kept.exists():
        return []
    lines = kept.read_bytes().split(b"\n")[:-1]
    return [msgspec.json.decode(line, type=Batch) for line in lines]


def missing(done: list[Batch], seeds: int) -> list[tuple[int, int]]:
    """List the batches, as first seed and count, that are not done; none is cut short."""
    begun = {one.first for one in done if not one.is_again}
    return [(first, BATCH) for first in range(0, seeds, BATCH) if first not in begun]


def again(done: list[Batch]) -> list[tuple[int, int]]:
    """List the seeds whose latest run broke an invariant."""
    return [(seed, 1) for seed in sorted(still_broken(done))]


def still_broken(done: list[Batch]) -> dict[int, Broken]:
    """Find the seeds whose latest run broke an invariant."""
    found: dict[int, Broken] = {}
    for batch in done:
        for seed in range(batch.first, batch.first + batch.count):
            found.pop(seed, None)
        found |= {one.seed: one for one in batch.broken}
    return found


def told(done: list[Batch]) -> str:
    """Say what came of all batches, in sentences for the page."""
    runs = [one for one in done if not one.is_again]
    faults = sum((Counter(one.faults) for one in runs), Counter[str]())
    met = {one.seed for batch in done for one in batch.broken}
    left = still_broken(done)
    commits = ", ".join(
        f"{sum(one.count for one in runs if one.commit == commit):,} on {commit}"
        for commit in dict.fromkeys(one.commit for one in runs)
    )
    sums = (
        f"{sum(one.count for one in runs):,} seeds ({commits}): {len(met)} broke an invariant"
        f"{f', {len(met) - len(left)} of them no more' if met else ''};"
        f" {sum(one.events for one in runs):,} events, {sum(one.steps for one in runs):,} steps,"
        f" {sum(one.virtual_s for one in runs) / 3600:,.0f} simulated hours."
    )
    lines = [
        sums,
        "",
        "| fault | times |",
        "|---|---:|",
        *(f"| {fault.replace('_', ' ')} | {many:,} |" for fault, many in sorted(faults.items())),
    ]
    if left:
        lines += ["", "| seed | what it says |", "|---|---|"]
        lines += [f"| {one.seed} | {one.said.replace('|', ' ')} |" for one in left.values()]
    return "\n".join(lines)


def _run(todo: list[tuple[int, int]], *, is_again: bool, processes: int) -> Iterator[Batch]:
    commit, waiting = _commit(), iter(todo)
    with ProcessPoolExecutor(
        processes,
        mp_context=multiprocessing.get_context("spawn"),
        max_tasks_per_child=_BATCHES_PER_PROCESS,
    ) as pool:
        while some := list(islice(waiting, _BATCHES_PER_PROCESS)):
            for ended in as_completed(
                pool.submit(_batch, *one, commit, is_again=is_again) for one in some
            ):
                yield ended.result()


def _batch(first: int, count: int, commit: str, *, is_again: bool) -> Batch:
    outcomes = [simulate(seed) for seed in range(first, first + count)]
    return Batch(
        first=first,
        count=count,
        commit=commit,
        events=sum(one.events for one in outcomes),
        steps=sum(one.steps for one in outcomes),
        virtual_s=round(sum(one.virtual_s for one in outcomes), 3),
        faults=dict(sum((Counter(one.faults) for one in outcomes), Counter[str]())),
        broken=tuple(
            Broken(seed=one.seed, said=one.violations[0][:_SAID_MAX])
            for one in outcomes
            if one.violations
        ),
        is_again=is_again,
    )


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"
    asked = [git, "describe", "--always", "--dirty", "--exclude=*"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True)  # noqa: S603 - git's name
    return told.stdout.strip()


def _say(batch: Batch) -> None:
    for one in batch.broken:
        sys.stdout.write(f"SEED={one.seed} {one.said}\n")
    sys.stdout.write(f"{batch.first}..{batch.first + batch.count - 1} done on {batch.commit}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
