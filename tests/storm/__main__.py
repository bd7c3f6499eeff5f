"""`make storm`: work goes on while everything is hurt in turn; then it heals, and all is counted.

The schedule follows from the seed. Every fourth part of it is free of faults, as in Jepsen's
tests, and the mix of faults changes from part to part. Writes `benchmarks/chaos.{json,md}`.
"""

import argparse
import contextlib
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from tests.chaos.conftest import LEASE_S, SETTINGS
from tests.storm.faults import FAULTS, Fault
from tests.storm.jobs import SMALL, SPARK, Job
from tests.storm.page import Report, page
from tests.support import pft
from tests.support.asking import http
from tests.support.parity import assert_parity
from tests.support.servers import wait_past, wait_until
from tests.support.stack import Stack, running_stack

BENCHMARKS = Path("benchmarks")
PARTS = 8
QUIET_EACH = 4
PFT = {"lease_seconds": LEASE_S, "heartbeat_seconds": 1, "frame_rows": 20}
SMALL_A_ROUND = 50
SMALL_MIN = 1_000
# PFT's own database restarts with the ledger's, and its steps between stages have no retries.
TARGET_AWAY = {"db_connection"}
HEALED_S = 300.0
# Leases end here more often than by bad luck: losses alone must not use up a command's attempts.
ATTEMPTS = ("--set", "PLANNER_STEP_ATTEMPTS_MAX=100")
console = Console()


def main() -> None:
    """Run the storm and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small", type=int, default=SMALL_MIN, help="small executions, at least")
    arguments = parser.parse_args()
    report = Report(seed=arguments.seed, minutes=arguments.minutes, small_min=arguments.small)
    with tempfile.TemporaryDirectory(prefix="noetl-storm-") as folder:
        root = Path(folder)
        with running_stack(root / "stack", *SETTINGS, *ATTEMPTS) as stack:
            pft.prepare(stack)
            for job in (SMALL, SPARK):
                _register(stack, job)
            with pft.fixture(root) as served:
                Storm(stack, served, report).run()
    BENCHMARKS.joinpath("chaos.md").write_text(page(report))
    BENCHMARKS.joinpath("chaos.json").write_bytes(
        msgspec.json.format(msgspec.json.encode(report)) + b"\n"
    )
    console.print(page(report))


class Storm:
    """Three kinds of work and one that hurts, each in a thread of its own."""

    def __init__(self, stack: Stack, served: pft.Fixture, report: Report) -> None:
        self._stack = stack
        self._served = served
        self._report = report
        self._is_over = threading.Event()
        # Held while something is hurt, and while a verifier looks.
        self._peace = threading.Lock()
        self._pft_runs: list[str] = []
        self._problems: list[Exception] = []
        self._patience_s = report.minutes * 60 + HEALED_S

    def run(self) -> None:
        """Hurt and heal; raises all that went wrong in any thread, or afterwards."""
        with ThreadPoolExecutor() as threads:
            kinds = (self._run_pft, self._run_small, self._run_spark)
            work = [threads.submit(kind) for kind in kinds]
            try:
                self._hurt()
            finally:
                self._is_over.set()
            healed = time.monotonic()
            for item in work:
                with self._counting():
                    item.result()
        for execution_id in self._pft_runs:
            with self._counting():
                assert_parity(self._stack, execution_id)
        for job, executions in ((SMALL, self._report.small), (SPARK, self._report.spark)):
            for execution_id in executions:
                with self._counting():
                    _conclude(self._stack, execution_id, job)
        self._report.healed_s = round(time.monotonic() - healed, 1)
        if self._problems:
            raise ExceptionGroup("not everything is as it must be", self._problems)

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        """Note what a check finds wrong, and let the others be made as well."""
        try:
            yield
        except (AssertionError, httpx.HTTPError, TimeoutError) as problem:
            self._problems.append(problem)

    def _hurt(self) -> None:
        chance = random.Random(self._report.seed)
        part_s = self._report.minutes * 60 / PARTS
        columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("storm", total=PARTS * part_s)
            for part in range(PARTS):
                until = time.monotonic() + part_s
                is_quiet = part % QUIET_EACH == QUIET_EACH - 1
                mix = chance.sample(FAULTS, k=3)
                while time.monotonic() < until:
                    started = time.monotonic()
                    what = "quiet" if is_quiet else self._hurt_once(chance.choice(mix), chance)
                    wait_past(time.monotonic(), chance.uniform(0.5, 4))
                    progress.update(bar, advance=time.monotonic() - started, description=what)

    def _hurt_once(self, fault: Fault, chance: random.Random) -> str:
        with self._peace:
            what = fault(self._stack, chance)
        self._report.faults[what] += 1
        return what

    def _run_pft(self) -> None:
        while not self._is_over.is_set():
            run = pft.start(self._stack, self._served, facilities=1, patients=200, workload=PFT)
            last = run.wait_for_any_end(self._patience_s)
            self._pft_runs.append(run.execution_id)
            if last["status"] == "FAILED" and last["error"]["kind"] in TARGET_AWAY:
                self._report.pft_without_target += 1
                continue
            assert last["status"] == "COMPLETED", last
            with self._peace, self._counting():
                run.verify("--disturbed", "--frame-rows", "20")
                self._report.pft_runs += 1

    def _run_small(self) -> None:
        begun = self._report.small
        while not self._is_over.is_set() or len(begun) < self._report.small_min:
            ended = len(begun)
            for number in range(ended, ended + SMALL_A_ROUND):
                begun.append(self._stack.execute(SMALL.name, key=f"storm-{number}"))
            for execution_id in begun[ended:]:
                _wait(self._stack, execution_id, patience_s=self._patience_s)

    def _run_spark(self) -> None:
        begun = self._report.spark
        while not self._is_over.is_set():
            begun.append(self._stack.execute(SPARK.name, key=f"spark-{len(begun)}"))
            _wait(self._stack, begun[-1], patience_s=self._patience_s)


def _wait(stack: Stack, execution_id: str, *, patience_s: float) -> None:
    wait_until(
        lambda: _status(stack, execution_id) in pft.TERMINAL,
        timeout_s=patience_s,
        what=f"{execution_id} ends",
    )


def _conclude(stack: Stack, execution_id: str, job: Job) -> None:
    """Every execution ends well, once, with the right sum, and its rows are its history's."""
    _wait(stack, execution_id, patience_s=HEALED_S)
    found = http.get(f"{stack.url('api')}/api/executions/{execution_id}/status", timeout=10).json()
    assert found["status"] == "COMPLETED", found
    url = f"{stack.url('api')}/api/result/{execution_id}/{job.step}"
    assert http.get(url, timeout=10).json()["data"] == job.result, execution_id
    assert_parity(stack, execution_id)


def _status(stack: Stack, execution_id: str) -> str | None:
    try:
        url = f"{stack.url('api')}/api/executions/{execution_id}/status"
        answer = http.get(url, timeout=5)
    except httpx.HTTPError:
        return None
    return answer.json()["status"] if answer.is_success else None


def _register(stack: Stack, job: Job) -> None:
    answer = http.post(
        f"{stack.url('api')}/api/catalog/register",
        content=job.playbook,
        headers={"Content-Type": "text/yaml"},
        timeout=10,
    )
    assert answer.is_success, answer.text


if __name__ == "__main__":
    main()
