"""What telemetry costs a stack that has nothing to do: off, scraped, and sent over OTLP."""

import multiprocessing
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from tests.bench.cpu import processes, spent
from tests.support import metrics, otlp
from tests.support.asking import http
from tests.support.stack import Stack, running_stack

SETTLED_S = 30.0
MEASURED_S = 60.0
SCRAPED_EACH_S = 15.0
MIB = 1024 * 1024
MODES = {
    "off": "off",
    "scraped": f"metrics scraped each {SCRAPED_EACH_S:g} s",
    "sent": "spans, metrics and logs over OTLP",
}


def measure(root: Path) -> dict[str, Any]:
    """Measure a stack of its own for each mode."""
    return {"seconds": MEASURED_S, **{mode: _measure_mode(root / mode, mode) for mode in MODES}}


def _measure_mode(folder: Path, mode: str) -> dict[str, Any]:
    with _collecting() as url:
        options = ["--workers", "1"]
        for service in metrics.SERVICES if mode == "sent" else ():
            options += ["--set", f"{service.upper()}_OTLP_ENDPOINT={url}"]
        with running_stack(folder, *options) as stack:
            _pass_time(stack, mode, SETTLED_S)
            before = spent(stack)
            _pass_time(stack, mode, MEASURED_S)
            cpu_s = {part: cpu - before.get(part, 0.0) for part, cpu in spent(stack).items()}
            return {
                "cpu_percent": {
                    part: round(100 * seconds / MEASURED_S, 2) for part, seconds in cpu_s.items()
                },
                "memory_mib": _measure_memory(stack),
            }


def _pass_time(stack: Stack, mode: str, seconds: float) -> None:
    """Let so long pass, scraping every service as Prometheus would where the mode says so."""
    end = time.monotonic() + seconds
    while (rest_s := end - time.monotonic()) > 0:
        for service in metrics.SERVICES if mode == "scraped" else ():
            for process in stack.names(service):
                http.get(metrics.get_metrics_url(stack, process), timeout=30).raise_for_status()
        time.sleep(min(SCRAPED_EACH_S, rest_s))


def _measure_memory(stack: Stack) -> dict[str, int]:
    """Measure each part's own memory, and its share of what it has in common with others."""
    memory: dict[str, float] = {}
    for part, process in processes(stack):
        try:
            memory[part] = memory.get(part, 0.0) + process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return {part: round(size / MIB) for part, size in memory.items()}


@contextmanager
def _collecting() -> Iterator[str]:
    """Run a collector in a process of its own."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_collect, args=(there,))
    process.start()
    try:
        yield here.recv()
    finally:
        here.send(None)
        process.join(30)


def _collect(parent: Any) -> None:
    with otlp.collecting() as collector:
        parent.send(collector.url)
        parent.recv()


def section(found: dict[str, Any]) -> str:
    """Write the figures for people."""
    rows = "\n".join(
        f"| {title} | {_sum_up(found[mode], 'cpu_percent'):.1f} "
        f"| {_show(found[mode]['cpu_percent'])} "
        f"| {_sum_up(found[mode], 'memory_mib'):.0f} | {_show(found[mode]['memory_mib'])} |"
        for mode, title in MODES.items()
    )
    return f"""## A stack with nothing to do, by its telemetry

One worker, no executions, {found["seconds"]:g} s of each; the collector is not counted.

| telemetry | services, % of one core | of these | services, MiB | of these |
|---|---:|---|---:|---|
{rows}
"""


def _sum_up(mode: dict[str, Any], what: str) -> float:
    return float(sum(mode[what].get(service, 0) for service in metrics.SERVICES))


def _show(by_part: dict[str, float]) -> str:
    return ", ".join(f"{service} {by_part[service]:g}" for service in metrics.SERVICES)
