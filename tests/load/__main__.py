"""Load and soak: `python -m tests.load soak | concurrent | sweep | tenants | console`.

Each runs on a stack of its own and writes its section of benchmarks/load.{json,md} anew; what the others
found stays. `--found FILE` keeps what was found in a file instead, `--write FILE` takes such a file
into the page.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from tests.load import (
    concurrent,
    console_pages,
    page,
    samples,
    soak,
    summing,
    sweep,
    telling,
    tenants,
)

Run = Callable[[Path, argparse.Namespace], dict[str, Any]]
console = Console()


def main() -> None:
    """Run one load and keep what it found, or keep what one found elsewhere."""
    given = _arguments()
    if given.page:
        page.keep(page.read())
        return
    found = _read(given) if given.write else _run(given)
    if given.found is not None:
        given.found.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    else:
        page.keep({**page.read(), given.name: found})
    console.print(page.SECTIONS[given.name](found), markup=False, highlight=False)
    bad = WRONG[given.name](found)
    for line in bad:
        console.print(line, style="red", markup=False)
    if bad:
        sys.exit(1)


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    before = telling.load()
    with tempfile.TemporaryDirectory(prefix=f"noetl-{arguments.name}-") as folder:
        found = RUNS[arguments.name](Path(folder), arguments)
    return {"machine": telling.machine(before), **found}


def _read(arguments: argparse.Namespace) -> dict[str, Any]:
    """Read a finding; of a soak also its samples, where they are named."""
    found: dict[str, Any] = msgspec.json.decode(arguments.write.read_bytes())
    if arguments.name == "soak" and arguments.samples is not None:
        found |= summing.summed(samples.read(arguments.samples))
    return found


def _soak(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    file = arguments.samples or folder / "samples.jsonl"
    soak_request = soak.SoakRequest(
        minutes=arguments.minutes, each_s=arguments.rate, sample_file=file
    )
    found = soak.run(folder, soak_request)
    return {**found, **summing.summed(samples.read(file))}


def _choose_size(arguments: argparse.Namespace) -> console_pages.Size:
    given = {
        name: getattr(arguments, name)
        for name in console_pages.Size.__struct_fields__
        if getattr(arguments, name) is not None
    }
    return console_pages.Size(**given)


RUNS: dict[str, Run] = {
    "soak": _soak,
    "concurrent": lambda folder, given: concurrent.run(
        folder, executions=given.executions or concurrent.EXECUTIONS
    ),
    "sweep": lambda folder, given: sweep.run(
        folder, executions=given.executions or sweep.EXECUTIONS
    ),
    "console": lambda folder, given: console_pages.run(folder, _choose_size(given)),
    "tenants": lambda folder, given: tenants.run(
        folder, tenants.Size(flood=given.flood, small=given.small)
    ),
}
WRONG: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "soak": soak.wrong,
    "concurrent": concurrent.wrong,
    "sweep": sweep.wrong,
    "tenants": tenants.wrong,
    "console": console_pages.wrong,
}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=RUNS, help="which load")
    parser.add_argument("--minutes", type=float, default=60.0, help="of soak and console")
    parser.add_argument("--rate", type=float, default=2.0, help="executions a second, of the soak")
    parser.add_argument("--samples", type=Path, help="where the soak's samples are kept")
    parser.add_argument("--executions", type=int, help="of concurrent and sweep")
    parser.add_argument("--flood", type=int, default=tenants.FLOOD, help="of tenants")
    parser.add_argument("--small", type=int, default=tenants.SMALL, help="of tenants")
    parser.add_argument("--items", type=int, help="of the console's large run")
    parser.add_argument("--lines", type=int, help="of the console's log")
    parser.add_argument("--runs", type=int, help="of the console's list")
    parser.add_argument("--watchers", type=int, help="pages of the console at once")
    parser.add_argument("--found", type=Path, help="write what was found here, not to benchmarks/")
    parser.add_argument("--write", type=Path, help="take such a file into benchmarks/, run nothing")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    return parser.parse_args()


if __name__ == "__main__":
    main()
