"""The console's pages under load: long lists, a live run watched for long, many watchers at once."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct, to_builtins
from playwright.sync_api import Browser, CDPSession, Page, sync_playwright
from rich.console import Console
from tests.bench.client import HEAD
from tests.console.conftest import PROGRAMS, is_over, read_status, sign_in_address
from tests.load import filling
from tests.load.trend import slope
from tests.support.asking import http
from tests.support.servers import wait_until
from tests.support.stack import Stack, running_stack

# What a page may gain in an hour, and what the watchers may take of a core.
GROWTH_MIB_MAX, WATCHERS_SHARE_MAX = 2.0, 0.05
HEAP_MIB_MAX = 100.0
# More than the longest run has time for.
LIVE_ITEMS = 100_000
# A machine that draws many pages at once is slow to answer.
ANSWER_S = 120.0
PATIENCE_S, PAGE_WAIT_MS, WATCHER_WAIT_MS = 1_800.0, 60_000, 240_000
SAMPLE_S, WATCHED_S = 10.0, 60.0
MIB = 2**20
MANY_ITEMS = (
    HEAD
    + """metadata: {name: many-items, path: load/many-items}
workload: {n: 0}
workflow:
  - step: each
    loop: {in: "{{ range(workload.n) }}", iterator: item, spec: {mode: parallel}}
    tool: {kind: noop, result: {n: "{{ iter.item }}"}}
"""
)
MANY_LINES = (
    HEAD
    + """metadata: {name: many-lines, path: load/many-lines}
workload: {n: 0}
workflow:
  - step: write
    tool:
      kind: python
      args: {n: "{{ workload.n }}"}
      code: |
        for number in range(n):
            print(f"row {number} was read" + (" and refused" if number % 20_000 == 7 else ""))
"""
)
# Goes on until it is cancelled; an item a second and slot makes some events.
LIVE = (
    HEAD
    + """metadata: {name: live, path: load/live}
workload: {n: 0}
workflow:
  - step: each
    loop:
      in: "{{ range(workload.n) }}"
      iterator: item
      spec: {mode: parallel, max_in_flight: 4}
    tool:
      kind: python
      args: {n: "{{ iter.item }}"}
      code: |
        import time
        time.sleep(0.8)
        result = {"n": n}
"""
)
console = Console()


class Size(Struct, frozen=True, kw_only=True):
    """How much there is to look at, for how long, and by how many pages at once."""

    minutes: float = 60.0
    items: int = 100_000
    lines: int = 100_000
    runs: int = 1_000
    watchers: int = 50


def run(folder: Path, size: Size) -> dict[str, Any]:
    """Fill a stack, then look at it through a browser."""
    with running_stack(folder / "stack", "--workers", "1", "--no-s3") as stack:
        # The browser's driver has an event loop of its own: what needs another comes before it.
        filling.fill(stack.url("postgres"), size.runs)
        items = _run_to_end(stack, MANY_ITEMS, "load/many-items", size.items)
        lines = _run_to_end(stack, MANY_LINES, "load/many-lines", size.lines)
        _put(stack, LIVE)
        with _browser() as chrome:
            found = _look_at_pages(chrome, stack, size, items=items, lines=lines)
            live = stack.execute("load/live", key="live", n=LIVE_ITEMS)
            wait_until(
                lambda: read_status(stack.url("api"), live) == "RUNNING",
                timeout_s=PATIENCE_S,
                what="the live run begins",
            )
            found["watching"] = _watch_long(chrome, stack, live, minutes=size.minutes)
            found["watchers"] = _count_cost(chrome, stack, live, watchers=size.watchers)
        http.post(f"{stack.url('api')}/api/executions/{live}/cancel", json={}, timeout=ANSWER_S)
    return {**to_builtins(size), **found}


def _look_at_pages(
    chrome: Browser, stack: Stack, size: Size, *, items: str, lines: str
) -> dict[str, Any]:
    ran, written = f"a run of {size.items:,} items", f"{size.lines:,} lines"
    return {
        "logs": _search_logs(stack, lines),
        "pages": [
            _open_page(chrome, stack, f"{size.runs:,} runs", "runs", "tbody tr"),
            _open_page(chrome, stack, ran, f"runs/{items}", "main h1"),
            _open_page(chrome, stack, "its items", f"runs/{items}/items", "tbody tr"),
            _open_page(chrome, stack, written, f"runs/{lines}/logs?find=refused", "mark"),
        ],
    }


def wrong(found: dict[str, Any]) -> list[str]:
    """Name what misses its bound."""
    heavy = [page["page"] for page in found["pages"] if page["heap_mib"] > HEAP_MIB_MAX]
    misses = {
        "a live page grows": found["watching"]["heap_mib_an_hour"] > GROWTH_MIB_MAX,
        "the watchers cost too much": found["watchers"]["share"] > WATCHERS_SHARE_MAX,
        f"too much memory: {', '.join(heavy)}": bool(heavy),
        "lines were not found": found["logs"]["found"] != len(range(7, found["lines"], 20_000)),
    }
    return [what for what, is_missed in misses.items() if is_missed]


@contextmanager
def _browser() -> Iterator[Browser]:
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    assert program is not None, f"no browser is installed: none of {', '.join(PROGRAMS)}"
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield launched
        launched.close()


def _put(stack: Stack, text: str) -> None:
    answer = http.post(f"{stack.url('api')}/api/catalog/register", json={"content": text})
    assert answer.is_success, answer.text


def _run_to_end(stack: Stack, text: str, path: str, count: int) -> str:
    _put(stack, text)
    began = time.monotonic()
    execution_id = stack.execute(path, key=path, n=count)
    ended: Callable[[], bool] = partial(is_over, stack.url("api"), execution_id)
    wait_until(ended, timeout_s=PATIENCE_S, what=f"{path} ends")
    assert read_status(stack.url("api"), execution_id) == "COMPLETED", path
    console.print(f"{path}: {time.monotonic() - began:.0f} s")
    return execution_id


def _search_logs(stack: Stack, execution_id: str) -> dict[str, Any]:
    """Look for a few lines among all, in pages as a client asks for them."""
    found = read = pages = 0
    after, has_more, longest_s, began = "", True, 0.0, time.monotonic()
    while has_more:
        asked = time.monotonic()
        page = http.get(
            f"{stack.url('api')}/api/executions/{execution_id}/logs",
            params={"text": "AND REFUSED", "after": after, "limit": 5_000},
            timeout=ANSWER_S,
        ).json()
        longest_s = max(longest_s, time.monotonic() - asked)
        found, read, pages = found + len(page["lines"]), read + page["lines_read"], pages + 1
        after, has_more = page["next_after"], page["has_more"]
    return {
        "lines": read,
        "found": found,
        "pages": pages,
        "seconds": round(time.monotonic() - began, 3),
        "longest_s": round(longest_s, 3),
    }


def _open_page(browser: Browser, stack: Stack, name: str, path: str, wait: str) -> dict[str, Any]:
    """Open a page as somebody does who has been here before; the second time counts."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(sign_in_address(stack))
    page.wait_for_url("**/console/runs")
    seconds = 0.0
    for _ in range(2):
        began = time.monotonic()
        page.goto(f"{stack.url('api')}/console/{path}")
        page.locator(wait).first.wait_for(timeout=PAGE_WAIT_MS)
        seconds = time.monotonic() - began
    heap_mib, nodes = _measure_heap(context.new_cdp_session(page))
    context.close()
    console.print(f"{name}: {seconds:.2f} s, {heap_mib:.1f} MiB, {nodes} nodes")
    return {
        "page": name,
        "seconds": round(seconds, 2),
        "heap_mib": round(heap_mib, 1),
        "nodes": nodes,
    }


def _measure_heap(session: CDPSession) -> tuple[float, int]:
    """Return what the page's program holds after a collection, and its nodes."""
    session.send("HeapProfiler.collectGarbage")
    used = session.send("Runtime.getHeapUsage")["usedSize"] / MIB
    return used, session.send("Memory.getDOMCounters")["nodes"]


def _watch_long(browser: Browser, stack: Stack, live: str, *, minutes: float) -> dict[str, Any]:
    """Keep a page open on a live run; measure its heap again and again."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = _open_live(context.new_page(), stack, live)
    session = context.new_cdp_session(page)
    began, first = time.monotonic(), _read_version(stack, live)
    samples: list[tuple[float, float, int]] = []
    while (at_s := time.monotonic() - began) < minutes * 60:
        samples.append((round(at_s, 1), *_measure_heap(session)))
        page.wait_for_timeout(SAMPLE_S * 1000)
    seconds = time.monotonic() - began
    events = _read_version(stack, live) - first
    context.close()
    # The first quarter fills caches of the page.
    kept = samples[len(samples) // 4 :]
    return {
        "minutes": round(seconds / 60, 1),
        "events_per_s": round(events / seconds, 1),
        "heap_mib_first": round(kept[0][1], 2),
        "heap_mib_last": round(kept[-1][1], 2),
        "heap_mib_an_hour": round(slope([(at, heap) for at, heap, _ in kept]) * 3600, 2),
        "nodes_first": kept[0][2],
        "nodes_last": kept[-1][2],
    }


def _open_live(page: Page, stack: Stack, live: str) -> Page:
    # The fiftieth page waits for all before it.
    page.set_default_timeout(WATCHER_WAIT_MS)
    page.goto(sign_in_address(stack))
    page.wait_for_url("**/console/runs")
    page.goto(f"{stack.url('api')}/console/runs/{live}")
    page.locator("main h1").first.wait_for()
    return page


def _read_version(stack: Stack, execution_id: str) -> int:
    answer = http.get(f"{stack.url('api')}/api/executions/{execution_id}/moment", timeout=ANSWER_S)
    return int(answer.json()["head_version"])


def _count_cost(browser: Browser, stack: Stack, live: str, *, watchers: int) -> dict[str, Any]:
    """Compare what the planner computes without watchers and with them."""
    alone = _measure_planner(stack, lambda: time.sleep(WATCHED_S))
    contexts = [browser.new_context() for _ in range(watchers)]
    pages = [_open_live(context.new_page(), stack, live) for context in contexts]
    # What the pages ask for once is no cost of being open.
    pages[0].wait_for_timeout(SAMPLE_S * 1000)
    watched = _measure_planner(stack, lambda: pages[0].wait_for_timeout(WATCHED_S * 1000))
    for context in contexts:
        context.close()
    return {
        "watchers": watchers,
        "alone": round(alone, 4),
        "watched": round(watched, 4),
        "share": round(watched - alone, 4),
    }


def _measure_planner(stack: Stack, rest: Callable[[], None]) -> float:
    """Return which share of a core the planner takes meanwhile."""
    planner = psutil.Process(stack.state["processes"]["planner-1"]["pid"])
    family = [planner, *planner.children(recursive=True)]
    before, began = _sum_cpu(family), time.monotonic()
    rest()
    return (_sum_cpu(family) - before) / (time.monotonic() - began)


def _sum_cpu(family: list[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in family if process.is_running())
