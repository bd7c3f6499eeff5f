"""A soak: a modest mix of work for an hour, all counted, the memory of every process watched."""

import asyncio
import itertools
import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from msgspec import Struct, field
from rich.console import Console
from tests.bench.client import TERMINAL, Client
from tests.bench.site import site
from tests.load import mix, samples
from tests.load.auditing import audit, audit_wrong, restarts
from tests.load.mix import KINDS, Kind
from tests.load.trend import is_service
from tests.support import pft
from tests.support.parity import assert_parity
from tests.support.stack import Stack, running_stack

WORKERS = 2
EVERY_S = 10.0
BEAT_S = 1.0
# Nothing more is asked for while so many are open: a busy machine slows a soak, nothing is flooded.
OPEN_MAX = 60
# What waits for somebody is left waiting for so long.
MEANWHILE_S = 3.0
PFT_EVERY_S = 240.0
PFT_PATIENTS = 50
DRAIN_S = 600.0
SAMPLED = 200
console = Console()


class SoakRequest(Struct, frozen=True, kw_only=True):
    """How long, how much, and where the samples go."""

    minutes: float = 60.0
    each_s: float = 2.0
    sample_file: Path = Path("soak.jsonl")


class Open(Struct, kw_only=True):
    """One execution that has not ended yet."""

    execution_id: str
    kind: Kind
    since: float
    is_touched: bool = False


class Tally(Struct, kw_only=True):
    """What was asked for and how it ended."""

    asked: Counter[str] = field(default_factory=Counter)
    right: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    pft: list[str] = field(default_factory=list)
    # Beats at which too many were open.
    held_back: int = 0


def run(folder: Path, soak_request: SoakRequest) -> dict[str, Any]:
    """Soak a stack of its own, then count; the samples are kept in their file as they come."""
    soak_request.sample_file.write_bytes(b"")
    shared = Path(tempfile.mkdtemp(prefix="noetl-soak-", dir="/dev/shm"))
    options = ("--workers", str(WORKERS), "--set", f"WORKER_SHARED_DIRECTORY={shared}")
    try:
        with running_stack(folder / "stack", *options) as stack, site(delay_ms=2) as served:
            work = Work(stack, served.url)
            with (
                samples.sampling(
                    stack, soak_request.sample_file, every_s=EVERY_S, shared=shared, say=_say
                ),
                work.pft_beside(folder),
            ):
                work.go_on(soak_request.minutes * 60, soak_request.each_s)
                work.drain()
            found = _concluded(stack, work.tally)
    finally:
        shutil.rmtree(shared, ignore_errors=True)
    return {"minutes": soak_request.minutes, "each_s": soak_request.each_s, **found}


def _say(line: str) -> None:
    console.print(line, markup=False, highlight=False)


class Work:
    """Asks for executions at an even pace, sends them what they wait for, and judges their ends."""

    def __init__(self, stack: Stack, site_url: str) -> None:
        self.stack = stack
        self.client = Client(stack)
        self.site_url = site_url
        self.tally = Tally()
        self._open: list[Open] = []
        self._chance = random.Random(1)
        asyncio.run(_prepare(stack.url("target")))
        self.client.keep(mix.CREDENTIAL, stack.url("target"))
        for kind in KINDS:
            self.client.register(kind.playbook)

    def go_on(self, seconds: float, each_s: float) -> None:
        """Ask for so many a second until the time is over."""
        until, kinds = time.monotonic() + seconds, itertools.cycle(KINDS)
        due = 0.0
        told = time.monotonic()
        while time.monotonic() < until:
            began = time.monotonic()
            due += each_s * BEAT_S
            while due >= 1:
                due -= 1
                self._ask(next(kinds))
            self._look()
            if began - told > 60:
                told = began
                _say(f"{sum(self.tally.right.values())} right, {len(self._open)} open")
            time.sleep(max(0.0, BEAT_S - (time.monotonic() - began)))

    def drain(self) -> None:
        """Wait until everything has ended; what has not counts as wrong."""
        until = time.monotonic() + DRAIN_S
        while self._open and time.monotonic() < until:
            self._look()
            time.sleep(BEAT_S)
        self.tally.wrong += [f"{item.execution_id} ({item.kind.name}) open" for item in self._open]

    @contextmanager
    def pft_beside(self, folder: Path) -> Iterator[None]:
        """Run PFT A now and then, each run verified, until the block ends."""
        pft.prepare(self.stack)
        is_over = threading.Event()
        with pft.fixture(folder) as served, ThreadPoolExecutor(1) as threads:
            running: Future[None] = threads.submit(self._run_pft, served, is_over)
            try:
                yield
            finally:
                is_over.set()
                running.result()

    def _run_pft(self, served: pft.Fixture, is_over: threading.Event) -> None:
        while not is_over.is_set():
            run = pft.start(self.stack, served, facilities=1, patients=PFT_PATIENTS)
            try:
                run.wait(DRAIN_S)
                run.verify()
            except (AssertionError, TimeoutError) as failure:
                self.tally.wrong.append(f"{run.execution_id} (pft) {str(failure)[:2000]}")
            self.tally.pft.append(run.execution_id)
            is_over.wait(PFT_EVERY_S)

    def _ask(self, kind: Kind) -> None:
        if len(self._open) >= OPEN_MAX:
            self.tally.held_back += 1
            return
        try:
            execution_id = self.client.submit(kind.path, site=self.site_url)
        except httpx.HTTPError as failure:
            self.tally.wrong.append(f"a request ({kind.name}) {failure!r}")
            return
        self.tally.asked[kind.name] += 1
        self.tally.ids.append(execution_id)
        self._open.append(Open(execution_id=execution_id, kind=kind, since=time.monotonic()))

    def _look(self) -> None:
        now = time.monotonic()
        for item in self._open:
            if item.kind.meanwhile and not item.is_touched and now - item.since > MEANWHILE_S:
                item.is_touched = self._touch(item)
        self._open = [
            item for item in self._open if now - item.since < BEAT_S or not self._ended(item)
        ]

    def _touch(self, one: Open) -> bool:
        """Cancel it, or send it what it waits for; tell whether that was taken."""
        path = (
            f"/api/executions/{one.execution_id}/cancel"
            if one.kind.meanwhile == "cancel"
            else f"/api/signals/soak-{one.execution_id}"
        )
        body = {} if one.kind.meanwhile == "cancel" else {"paid": 12.5}
        with suppress(httpx.HTTPError):
            return self.client.http.post(path, json=body).is_success
        return False

    def _ended(self, one: Open) -> bool:
        shown = self._status(one.execution_id)
        if shown.get("status") not in TERMINAL:
            return False
        differs = difference(one.kind, shown)
        if differs is None:
            self.tally.right[one.kind.name] += 1
        else:
            self.tally.wrong.append(f"{one.execution_id} ({one.kind.name}) {differs}")
        return True

    def _status(self, execution_id: str) -> dict[str, Any]:
        """What the API says; nothing while it says nothing, or nothing is projected."""
        try:
            answer = self.client.http.get(f"/api/executions/{execution_id}/status")
        except httpx.HTTPError:
            return {}
        shown: dict[str, Any] = answer.json() if answer.is_success else {}
        return shown


def difference(kind: Kind, shown: dict[str, Any]) -> str | None:
    """Compare an end with the one that the kind must come to; say what differs, if anything."""
    if shown["status"] != kind.ends:
        return f"{shown['status']}, not {kind.ends}: {shown['error']}"
    if kind.error is not None and shown["error"]["kind"] != kind.error:
        return f"failed with {shown['error']}, not {kind.error}"
    variables = {name: shown["variables"].get(name) for name in kind.variables}
    return None if variables == kind.variables else f"{variables}, not {kind.variables}"


async def _prepare(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(f"{mix.TABLE}; {mix.INDEX}")
    finally:
        await connection.close()


def _concluded(stack: Stack, tally: Tally) -> dict[str, Any]:
    """Count what the ledger holds against what was asked for; replay all of it."""
    by_kind = {kind.name: kind for kind in KINDS}
    expected: Counter[str] = Counter()
    for name, count in tally.asked.items():
        kind = by_kind[name]
        expected[kind.ends] += count
        expected[mix.COMPLETED] += count * (kind.executions - 1)
    expected[mix.COMPLETED] += len(tally.pft)
    found = asyncio.run(_statuses(stack.url("postgres")))
    audited = audit(stack)
    chosen = random.Random(1).sample(tally.ids, min(SAMPLED, len(tally.ids)))
    return {
        "asked": dict(tally.asked),
        "right": dict(tally.right),
        "wrong": tally.wrong,
        "pft": len(tally.pft),
        "held_back": tally.held_back,
        "statuses": {"expected": dict(expected), "found": found},
        "audit": audited,
        "compared": len(chosen),
        "differ": [item for item in chosen if not _is_replayed(stack, item)],
        "restarts": restarts(stack),
    }


async def _statuses(dsn: str) -> dict[str, int]:
    connection = await asyncpg.connect(dsn)
    try:
        rows = await connection.fetch(
            "SELECT status, count(*) AS n FROM noetl.execution GROUP BY status"
        )
    finally:
        await connection.close()
    return {row["status"]: row["n"] for row in rows}


def _is_replayed(stack: Stack, execution_id: str) -> bool:
    try:
        assert_parity(stack, execution_id)
    except (AssertionError, TimeoutError) as failure:
        _say(f"{execution_id}: {failure}")
        return False
    return True


def wrong(found: dict[str, Any]) -> list[str]:
    """Name what must not be: a wrong end, a lost or damaged history, memory that grows."""
    expected, seen = found["statuses"]["expected"], found["statuses"]["found"]
    grown = [
        name for name, trend in found["memory"].items() if is_service(name) and not trend["is_flat"]
    ]
    return [
        *found["wrong"],
        *(f"{item} is not what its history folds to" for item in found["differ"]),
        *([] if expected == seen else [f"executions by status: {seen}, not {expected}"]),
        *audit_wrong(found["audit"]),
        *(f"memory of {name} grows" for name in grown),
    ]
