"""Two commits measured in turn, A B A B, W1 on both at once: this tree and another one, both by this tree's measurements.

Of the other commit nothing of `tests` is used. Its services are started by its own `noetl up --dir`, found by
its `state.json`, and worked through the HTTP API; any commit that has these three can be measured, also when its
own benchmarks were others. Series that call the code itself (`past`, `projecting`, `ledger`, `tiers`) cannot be compared so.
"""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.bench import pairing, series
from tests.bench.peers.installing import uv_program
from tests.bench.report import machine
from tests.bench.series import SERIES, SeriesChoice
from tests.support.stack import running_stack

OURS, THEIRS = "this tree", "the commit"
COMPARABLE = tuple(name for name, item in SERIES.items() if item.on_stack)
# What is so short that it is run in turn, once here and once there.
PAIRED = "w1"
USUAL = ("w1", "w2", "w3", "w3f")
ROUNDS = 2
# What is compared of a series: medians, whole times, and what one unit costs.
PARTS = ("planner", "worker", "postgres", "nats")

console = Console()


def compare(
    ref: str,
    names: Sequence[str] | None,
    *,
    choice: SeriesChoice,
    workers: int | None,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Measure a commit and this tree in turn; return every figure of both, and ours over theirs."""
    chosen = names or USUAL
    if strange := [name for name in chosen if name not in COMPARABLE]:
        raise SystemExit(
            f"{', '.join(strange)}: measured inside one process, not over the API; "
            f"compare some of {', '.join(COMPARABLE)}"
        )
    found: dict[str, list[dict[str, float]]] = {THEIRS: [], OURS: []}
    with tempfile.TemporaryDirectory(prefix="noetl-compare-") as folder:
        root = Path(folder)
        with worktree(ref, root / "tree") as python:
            sides = {THEIRS: python, OURS: Path(sys.executable)}
            for turn in range(rounds):
                paired = _measure_paired(list(sides.values()), root / f"{turn}-paired", chosen)
                for side, interpreter, pair in zip(sides, sides.values(), paired, strict=True):
                    console.print(f"round {turn + 1}: {side}")
                    place = root / f"{turn}-{'ours' if side is OURS else 'theirs'}"
                    alone = [name for name in chosen if name != PAIRED]
                    found[side].append(pair | _figures(interpreter, place, alone, choice, workers))
    return {
        **machine(),
        "ref": ref,
        "commit": _git("rev-parse", "--short", ref),
        "rounds": rounds,
        "figures": ratios(found[OURS], found[THEIRS]),
    }


@contextmanager
def worktree(ref: str, tree: Path) -> Iterator[Path]:
    """Check a commit out beside this tree, make its environment, yield its interpreter."""
    _git("worktree", "add", "--detach", "--force", str(tree), ref)
    try:
        console.print(f"making the environment of {ref}")
        uv = str(Path(uv_program()).absolute())
        done = subprocess.run(  # noqa: S603 - our own command line
            ["make", "setup", f"UV={uv}"],  # noqa: S607 - make of the machine
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"`make setup` of {ref} failed:\n{done.stderr[-2000:]}")
        yield tree / ".venv" / "bin" / "python"
    finally:
        _git("worktree", "remove", "--force", str(tree))


def _measure_paired(
    interpreters: Sequence[Path], place: Path, names: Sequence[str]
) -> list[dict[str, float]]:
    """Measure W1, if it is asked for, on both at once."""
    if PAIRED not in names:
        return [{} for _ in interpreters]
    return [figures({PAIRED: item}) for item in pairing.measure_pair(interpreters, place)]


def _figures(
    python: Path, place: Path, names: Sequence[str], choice: SeriesChoice, workers: int | None
) -> dict[str, float]:
    found: dict[str, Any] = {}
    for count, sharing in series.stacks(names, workers).items():
        root = place / str(count)
        root.mkdir(parents=True)
        with running_stack(root / "stack", "--workers", str(count), python=python) as stack:
            found |= series.measure_on(stack, sharing, root, choice)
    return figures(found)


def figures(found: Any, place: str = "") -> dict[str, float]:
    """Flatten a report to what is compared: `w2.per_s`, `w2.each.cpu_us.planner`, `w5.seconds`."""
    if not isinstance(found, dict):
        return {}
    flat: dict[str, float] = {}
    for key, value in found.items():
        here = f"{place}.{key}".strip(".")
        if isinstance(value, dict) and "median" in value:
            flat[here] = value["median"]
        elif isinstance(value, dict):
            flat |= figures(value, here)
        elif _is_compared(here, value):
            flat[here] = value
    return flat


def _is_compared(place: str, value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    *above, last = place.split(".")
    if above and above[-1] == "cpu_us":
        return last in PARTS
    return last in {"seconds", "transactions", "wal_bytes"}


def ratios(
    ours: Sequence[dict[str, float]], theirs: Sequence[dict[str, float]]
) -> dict[str, dict[str, Any]]:
    """Compare medians of all rounds; of what one side lacks nothing is said."""
    names = [name for name in ours[0] if name in theirs[0]]
    told = {}
    for name in names:
        mine, others = ([item[name] for item in side] for side in (ours, theirs))
        middle = statistics.median(others)
        told[name] = {
            "theirs": others,
            "ours": mine,
            "ratio": round(statistics.median(mine) / middle, 3) if middle else None,
            # Where the rounds of one side lie between the other's, nothing is shown.
            "is_apart": max(mine) < min(others) or min(mine) > max(others),
        }
    return told


def table(found: dict[str, Any]) -> Table:
    """Show figures of both sides, round by round."""
    shown = Table(title=f"this tree over {found['ref']} ({found['commit']})")
    for column in ("figure", "theirs", "ours", "ours / theirs", ""):
        shown.add_column(column, justify="left" if column == "figure" else "right", no_wrap=True)
    for name, item in found["figures"].items():
        apart = "" if item["is_apart"] else "not apart"
        cells = [", ".join(f"{value:g}" for value in item[side]) for side in ("theirs", "ours")]
        shown.add_row(name, *cells, str(item["ratio"]), apart)
    return shown


def _git(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own command line
        ["git", *arguments],  # noqa: S607 - git of the machine
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
