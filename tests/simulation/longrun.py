"""Run very many seeds, going on where it stopped: `python -m tests.simulation.longrun`.

benchmarks/simulation.json keeps what came of the seeds that are done, with the commit that they
ran on, and benchmarks/simulation.md says it. Both are written whenever a batch is done, so that a
run goes on wherever the repository is. Seeds that broke an invariant are run again by `--again`, on
the commit that repairs them.
"""

import argparse
import gc
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
from msgspec import Struct, structs
from tests.simulation.hunt import PAGE
from tests.simulation.world import simulate

SEEDS = 100_000
BATCH = 100
# Processes are replaced after so many batches: nothing that they might have kept adds up. The pool
# goes with them, as one that replaces them by itself may wait for ever (CPython gh-115634).
_BATCHES_PER_POOL = 100
KEPT = PAGE.with_suffix(".json")
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
    arguments = argparse.ArgumentParser(prog="python -m tests.simulation.longrun")
    arguments.add_argument(
        "--seeds", type=int, default=SEEDS, help="how many seeds in all, from 0 on"
    )
    arguments.add_argument("--processes", type=int, default=1)
    arguments.add_argument(
        "--again", action="store_true", help="run the broken seeds, and no others"
    )
    given = arguments.parse_args()
    done = read(KEPT)
    todo = again(done) if given.again else missing(done, given.seeds)
    for batch in _run(todo, is_again=given.again, processes=given.processes):
        done = joined([*done, batch])
        write(KEPT, done)
        _write_page(done)
        _say(batch)
    return 1 if still_broken(done) else 0


def read(path: Path) -> list[Batch]:
    """Read the batches that are done."""
    return msgspec.json.decode(path.read_bytes(), type=list[Batch]) if path.exists() else []


def write(path: Path, done: list[Batch]) -> None:
    """Keep the batches that are done; whoever is killed here leaves the former file."""
    beside = path.with_suffix(".new")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(done), indent=1) + b"\n")
    beside.replace(path)


def joined(done: list[Batch]) -> list[Batch]:
    """Make one of batches that follow each other on one commit."""
    batches: list[Batch] = []
    for batch in sorted(done, key=lambda one: (one.is_again, one.first)):
        last = batches[-1] if batches else None
        if last is None or batch.is_again or not _is_next(last, batch):
            batches.append(batch)
        else:
            batches[-1] = structs.replace(
                last,
                count=last.count + batch.count,
                events=last.events + batch.events,
                steps=last.steps + batch.steps,
                virtual_s=round(last.virtual_s + batch.virtual_s, 3),
                faults=dict(sorted((Counter(last.faults) + Counter(batch.faults)).items())),
                broken=(*last.broken, *batch.broken),
            )
    return batches


def missing(done: list[Batch], seeds: int) -> list[tuple[int, int]]:
    """List what is not done, as first seeds and counts of at most `BATCH`."""
    found: list[tuple[int, int]] = []
    first = 0
    ends = [(item.first, item.first + item.count) for item in done if not item.is_again]
    for begin, end in [*sorted(ends), (seeds, seeds)]:
        until = min(begin, seeds)
        found += [(at, min(BATCH, until - at)) for at in range(first, until, BATCH)]
        first = max(first, end)
    return found


def again(done: list[Batch]) -> list[tuple[int, int]]:
    """List the seeds whose latest run broke an invariant."""
    return [(seed, 1) for seed in sorted(still_broken(done))]


def still_broken(done: list[Batch]) -> dict[int, Broken]:
    """Find the seeds whose latest run broke an invariant."""
    found: dict[int, Broken] = {}
    for batch in done:
        for seed in range(batch.first, batch.first + batch.count):
            found.pop(seed, None)
        found |= {item.seed: item for item in batch.broken}
    return found


def told(done: list[Batch]) -> str:
    """Say what came of all batches, in sentences for the page."""
    runs = [item for item in done if not item.is_again]
    faults = sum((Counter(run.faults) for run in runs), Counter[str]())
    met = {item.seed for batch in done for item in batch.broken}
    left = still_broken(done)
    commits = ", ".join(
        f"{sum(run.count for run in runs if run.commit == commit):,} on {commit}"
        for commit in dict.fromkeys(run.commit for run in runs)
    )
    sums = (
        f"{sum(run.count for run in runs):,} seeds ({commits}): {len(met)} broke an invariant"
        f"{f', {len(met) - len(left)} of them no more' if met else ''};"
        f" {sum(run.events for run in runs):,} events, {sum(run.steps for run in runs):,} steps,"
        f" {sum(run.virtual_s for run in runs) / 3600:,.0f} simulated hours."
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
        lines += [f"| {item.seed} | {item.said.replace('|', ' ')} |" for item in left.values()]
    return "\n".join(lines)


def _is_next(last: Batch, batch: Batch) -> bool:
    return batch.first == last.first + last.count and batch.commit == last.commit


def _write_page(done: list[Batch]) -> None:
    head, _, rest = PAGE.read_text().partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    PAGE.write_text(f"{head}{_BEGIN}\n{told(done)}\n{_END}{tail}")


def _run(todo: list[tuple[int, int]], *, is_again: bool, processes: int) -> Iterator[Batch]:
    commit, waiting = _commit(), iter(todo)
    spawning = multiprocessing.get_context("spawn")
    while some := list(islice(waiting, _BATCHES_PER_POOL)):
        with ProcessPoolExecutor(processes, mp_context=spawning) as pool:
            asked = [pool.submit(_batch, *item, commit, is_again=is_again) for item in some]
            for ended in as_completed(asked):
                yield ended.result()


def _batch(first: int, count: int, commit: str, *, is_again: bool) -> Batch:
    outcomes = [simulate(seed) for seed in range(first, first + count)]
    # What a seed leaves refers to itself and is found late: thousands of seeds held gigabytes.
    gc.collect()
    return Batch(
        first=first,
        count=count,
        commit=commit,
        events=sum(outcome.events for outcome in outcomes),
        steps=sum(outcome.steps for outcome in outcomes),
        virtual_s=round(sum(outcome.virtual_s for outcome in outcomes), 3),
        faults=dict(sum((Counter(outcome.faults) for outcome in outcomes), Counter[str]())),
        broken=tuple(
            Broken(seed=outcome.seed, said=outcome.violations[0][:_SAID_MAX])
            for outcome in outcomes
            if outcome.violations
        ),
        is_again=is_again,
    )


def _commit() -> str:
    """Name the commit; what is written beside the code does not change what runs."""
    changed = _git("status", "--porcelain", "--", ".", ":!docs")
    return _git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")


def _git(*words: str) -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"
    output = subprocess.run([git, *words], capture_output=True, text=True, check=True)  # noqa: S603 - git's name
    return output.stdout.strip()


def _say(batch: Batch) -> None:
    for item in batch.broken:
        sys.stdout.write(f"SEED={item.seed} {item.said}\n")
    sys.stdout.write(f"{batch.first}..{batch.first + batch.count - 1} done on {batch.commit}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
