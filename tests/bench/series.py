"""Every series of `make bench`, by name: what it measures, and whether it needs a running stack."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct
from rich.console import Console
from tests.bench import (
    admitting,
    answering,
    api,
    appending,
    auditing,
    crash,
    fetching,
    floors,
    growth,
    handover,
    latency,
    loops,
    past,
    processors,
    projecting,
    reacting,
    references,
    retiring,
    spark_overheads,
    telemetry,
    tiers,
    unaided,
    waves,
)
from tests.bench.references import Size
from tests.support.stack import Stack

console = Console()


class SeriesChoice(Struct, frozen=True, kw_only=True):
    """Which sizes are measured, where a series has a choice."""

    items: Sequence[int] = loops.ITEMS
    frame_items: Sequence[int] = loops.FRAME_ITEMS
    requests: int = fetching.REQUESTS
    variants: Sequence[str] = ("a",)
    size: Size = Size()


class Series(Struct, frozen=True, kw_only=True):
    """One series: `alone` needs no stack, `on_stack` one that does nothing else, with its `workers`."""

    about: str
    alone: Callable[[Path], Any] | None = None
    on_stack: Callable[[Stack, Path, SeriesChoice], Any] | None = None
    workers: int = 1
    is_usual: bool = True


# Where tasks are a worker's own time, a series has one for each: alone it leaves a quarter of two idle.
_PROCESSORS = psutil.cpu_count() or 1
# In the order in which they run: the API last, as it fills the ledger.
SERIES = {
    "past": Series(about="fold, replay, snapshots, chains", alone=lambda _: past.measure()),
    "projecting": Series(about="one projector", alone=lambda _: projecting.measure()),
    "ledger": Series(
        about="append beside a raw insert; the outbox", alone=lambda _: appending.measure()
    ),
    "admitting": Series(
        about="who sends a request, and whether they may", alone=lambda _: admitting.measure()
    ),
    "auditing": Series(
        about="an audit in one process and on Spark",
        alone=lambda _: auditing.measure(),
        is_usual=False,
    ),
    "retiring": Series(
        about="histories on their way out of the ledger", alone=lambda _: retiring.measure()
    ),
    "floors": Series(
        about="PostgreSQL, JetStream, HTTP with nothing around", alone=lambda _: floors.measure()
    ),
    "handover": Series(
        about="messages and rows of steps and items, and no engine",
        alone=lambda _: handover.measure(),
    ),
    "unaided": Series(
        about="requests and statements of W4 and PFT A, and no engine",
        alone=lambda _: unaided.measure(),
    ),
    "tiers": Series(
        about="payloads from store and memory",
        alone=lambda root: tiers.measure((root / "payloads").as_uri()),
    ),
    "waves": Series(
        about="frames in Spark's waves", alone=lambda _: waves.measure(), is_usual=False
    ),
    "spark": Series(
        about="Spark tasks beside Spark alone", alone=spark_overheads.measure, is_usual=False
    ),
    "telemetry": Series(
        about="an idle stack, watched and not", alone=telemetry.measure, is_usual=False
    ),
    "growth": Series(
        about="a growing ledger, longer loops, more workers",
        alone=growth.measure,
        is_usual=False,
    ),
    "w1": Series(about="one step", on_stack=lambda stack, _, __: latency.single(stack)),
    "answering": Series(
        about="one step beside the same exchange with no engine",
        on_stack=lambda stack, _, __: answering.measure(stack),
    ),
    "w2": Series(about="a chain of steps", on_stack=lambda stack, _, __: latency.steps(stack)),
    "w3": Series(
        about="items of a loop", on_stack=lambda stack, _, sizes: loops.by_item(stack, sizes.items)
    ),
    "w3f": Series(
        about="frames of a loop",
        on_stack=lambda stack, _, sizes: loops.by_frame(stack, sizes.frame_items),
    ),
    "w4": Series(
        about="requests and rows",
        on_stack=lambda stack, _, sizes: fetching.measure(stack, requests=sizes.requests),
        workers=_PROCESSORS,
    ),
    "w5": Series(about="workers killed", on_stack=lambda stack, _, __: crash.measure(stack)),
    "reacting": Series(
        about="how soon a report is in the ledger",
        on_stack=lambda stack, _, __: reacting.measure(stack),
    ),
    "small": Series(about="many executions", on_stack=lambda stack, _, __: latency.many(stack)),
    "pft": Series(
        about="the reference workload beside its floor",
        on_stack=lambda stack, root, sizes: references.measure(
            stack, root, sizes.variants, sizes.size
        ),
        workers=_PROCESSORS,
    ),
    "api": Series(
        about="an execution of a full ledger", on_stack=lambda stack, _, __: api.measure(stack)
    ),
}
USUAL = tuple(name for name, item in SERIES.items() if item.is_usual)


def measure_alone(names: Sequence[str], root: Path) -> dict[str, Any]:
    """Run those that need no stack, in the usual order."""
    return {
        name: _shown(name, partial(item.alone, root))
        for name, item in SERIES.items()
        if name in names and item.alone
    }


def measure_on(
    stack: Stack, names: Sequence[str], root: Path, sizes: SeriesChoice
) -> dict[str, Any]:
    """Run those that need a stack, in the usual order."""
    return {
        name: _shown(name, partial(item.on_stack, stack, root, sizes))
        for name, item in SERIES.items()
        if name in names and item.on_stack
    }


def _shown(name: str, run: Callable[[], Any]) -> Any:
    """Run one and print what it found, for whoever waits, and how fast the processors were."""
    console.print(f"{name}: {SERIES[name].about}")
    before = processors.measure()
    found = {**run(), "processors": before}
    console.print(found)
    return found


def stacks(names: Sequence[str], workers: int | None) -> dict[int, list[str]]:
    """Return which series share a stack, by its workers: so many for all, or what each wants."""
    found: dict[int, list[str]] = {}
    for name, item in SERIES.items():
        if name in names and item.on_stack:
            found.setdefault(workers or item.workers, []).append(name)
    return found
