"""Measure workloads beside their raw floors, in one run on one machine; writes benchmarks/benchmarks.*.

`--only NAME...` runs a few series and prints them; they go to benchmarks/ with `--keep`, in the place of the
former ones. `--peers` runs the same workloads on other engines, `--compare REF` on another commit.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from tests.bench import comparing, report, series
from tests.bench.page import page
from tests.bench.peers import alternating
from tests.bench.peers import running as peers
from tests.bench.references import Size
from tests.bench.series import SERIES, USUAL, SeriesChoice
from tests.support import pft
from tests.support.stack import running_stack

console = Console()


def main() -> None:
    """Run what is asked for, and write or print it."""
    given = _arguments()
    if given.compare:
        _compare(given)
        return
    names = given.only or USUAL
    found = {**report.machine(), **_measure(names, given)}
    if not given.only or given.keep:
        report.write(found if not given.only else {**report.read(), **found})
    console.print(page(found), markup=False, highlight=False, soft_wrap=True)


def _compare(arguments: argparse.Namespace) -> None:
    found = comparing.compare(
        arguments.compare, arguments.only, choice=_asked(arguments), workers=arguments.workers or 1
    )
    console.print(comparing.table(found))
    if arguments.keep:
        report.keep_comparison(found)


def _measure(names: Sequence[str], arguments: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="noetl-bench-") as folder:
        root = Path(folder)
        found = series.measure_alone(names, root)
        for workers, sharing in series.stacks(names, arguments.workers).items():
            with running_stack(root / f"stack-{workers}", "--workers", str(workers)) as stack:
                found["durability"] = report.durability(stack)
                found |= series.measure_on(stack, sharing, root, _asked(arguments))
        # After the stacks have ended: both have the machine for themselves.
        if arguments.peers:
            # Ours of this run stay beside theirs when other runs are kept.
            found["beside_peers"] = {name: found[name] for name in names if name in found}
            found["peers"] = peers.measure(root, arguments.peer)
            found["in_turn"] = alternating.measure(root, arguments.peer)
    return found


def _asked(arguments: argparse.Namespace) -> SeriesChoice:
    return SeriesChoice(
        items=arguments.items,
        requests=arguments.requests,
        frame_items=arguments.frame_items,
        variants=arguments.variant,
        size=Size(
            facilities=arguments.facilities, patients=arguments.patients, rounds=arguments.rounds
        ),
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SERIES, metavar="NAME", help=", ".join(SERIES))
    parser.add_argument("--keep", action="store_true", help="write what --only or --compare found")
    parser.add_argument("--peers", action="store_true", help="run other engines too")
    parser.add_argument("--peer", nargs="+", choices=peers.NAMES, default=list(peers.NAMES))
    parser.add_argument("--compare", metavar="REF", help="measure this tree and a commit in turn")
    parser.add_argument("--items", nargs="+", type=int, default=SeriesChoice().items, help="of w3")
    parser.add_argument("--frame-items", nargs="+", type=int, default=SeriesChoice().frame_items)
    parser.add_argument("--requests", type=int, default=SeriesChoice().requests, help="of w4")
    parser.add_argument("--variant", nargs="+", default=["a"], choices=pft.VARIANTS, help="of pft")
    parser.add_argument("--facilities", type=int, default=Size().facilities)
    parser.add_argument("--patients", type=int, default=Size().patients)
    parser.add_argument("--rounds", type=int, default=Size().rounds, help="of pft")
    parser.add_argument("--workers", type=int, help="of every stack; else what each series wants")
    return parser.parse_args()


if __name__ == "__main__":
    main()
