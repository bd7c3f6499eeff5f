"""PFT from outside: the fixture, a run through the front door, the verifier on its evidence."""

import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from msgspec import Struct
from tests.support.asking import ENDS, http
from tests.support.servers import wait_until
from tests.support.stack import PATIENCE_S, Stack

PLAYBOOKS = Path("workloads/pft/src/noetl_pft/playbooks")
VARIANTS = ("a", "b", "c")
CREDENTIAL = "pg_pft"
# The first number of a file of counts.
ASKED = struct.Struct("<Q")
TERMINAL = {"COMPLETED", "FAILED", "CANCELLED"}
NOTHING: Mapping[str, Any] = {}


class Fixture(Struct, frozen=True, kw_only=True):
    """A running fixture server."""

    api: str
    control: str
    ledger_dir: Path
    pid: int

    def begin(self) -> str:
        """Reset the request ledger and return the run's nonce."""
        nonce = os.urandom(8).hex()
        http.post(f"{self.control}/reset", json={"run": nonce}, timeout=60).raise_for_status()
        return nonce

    def count_requests(self, nonce: str) -> int:
        """How often it was asked in a run: each of its processes keeps count in a file."""
        files = (self.ledger_dir / nonce).glob("*.count")
        return sum(ASKED.unpack_from(file.read_bytes())[0] for file in files)

    def summary(self) -> Any:
        """What the fixture has counted in this run."""
        return http.get(f"{self.control}/ledger/summary", timeout=60).json()


@contextmanager
def fixture(folder: Path, *arguments: str) -> Iterator[Fixture]:
    """Serve PFT's records until the block ends."""
    ledger = folder / "requests"
    ledger.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "noetl_pft", "serve", "--port", "0", "--control-port", "0"]
    with subprocess.Popen(  # noqa: S603 - our own command line
        [*command, "--ledger-dir", str(ledger), *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        answer = msgspec.json.decode(process.stdout.readline())
        try:
            yield Fixture(
                api=answer["api"], control=answer["control"], ledger_dir=ledger, pid=process.pid
            )
        finally:
            process.terminate()
            process.wait(60)


class Run(Struct, kw_only=True):
    """One execution of a PFT playbook."""

    stack: Stack
    fixture: Fixture
    execution_id: str
    nonce: str
    variant: str
    facilities: int
    patients: int
    started_s: float
    seconds: float = 0.0

    def status(self) -> dict[str, Any]:
        """What the API says of the run; an API that is down right now says nothing."""
        try:
            url = f"{self.stack.url('api')}/api/executions/{self.execution_id}/status"
            answer = http.get(url, timeout=5)
            found: dict[str, Any] = answer.json() if answer.status_code == httpx.codes.OK else {}
        except httpx.HTTPError:
            found = {}
        return found

    def wait(self, patience_s: float = 120.0) -> None:
        """Wait for the end, which must be a good one."""
        last = self.wait_for_any_end(patience_s)
        assert last.get("status") == "COMPLETED", last

    def follow(self, patience_s: float = 120.0) -> None:
        """Hear of the end when it comes, without asking for it; it must be a good one."""
        url = f"{self.stack.url('api')}/api/executions/{self.execution_id}/stream"
        with http.stream("GET", url, params={"event_type": ENDS}, timeout=patience_s) as stream:
            heard = [line for line in stream.iter_lines() if line.startswith("event: ")]
        self.seconds = time.perf_counter() - self.started_s
        assert "event: playbook.completed" in heard, heard

    def wait_for_any_end(self, patience_s: float) -> dict[str, Any]:
        """Wait for the end; return how it stands then."""
        last: dict[str, Any] = {}

        def is_over() -> bool:
            nonlocal last
            # Asking costs the planner something: not more often than anybody would.
            time.sleep(0.2)
            last = self.status()
            return last.get("status") in TERMINAL

        wait_until(is_over, timeout_s=patience_s, what=f"execution {self.execution_id} ends")
        self.seconds = time.perf_counter() - self.started_s
        return last

    def wait_for_requests(self, count: int, patience_s: float = PATIENCE_S) -> None:
        """Wait until the fixture was asked so often; else fail, and tell how the run stands."""
        try:
            wait_until(
                lambda: self.fixture.count_requests(self.nonce) >= count,
                timeout_s=patience_s,
                what=f"{count} requests were made",
            )
        except TimeoutError as problem:
            made_count = self.fixture.count_requests(self.nonce)
            problem.add_note(f"{made_count} requests were made; the run: {self.status()}")
            problem.add_note(self.stack.describe_processes())
            raise

    def verify(self, *arguments: str) -> Any:
        """Let the verifier judge; return its report. Fails with its table unless it passes."""
        report = self.stack.folder.parent / f"report-{self.execution_id}.json"
        done = subprocess.run(  # noqa: S603 - our own command line
            [
                *(sys.executable, "-m", "noetl_pft", "verify", "--variant", self.variant),
                *("--facilities", str(self.facilities), "--patients", str(self.patients)),
                *("--execution", self.execution_id, "--nonce", self.nonce),
                *("--dsn", self.stack.url("target")),
                *("--event-dsn", self.stack.url("postgres_reader")),
                *("--ledger-dir", str(self.fixture.ledger_dir), "--json", str(report)),
                *arguments,
            ],
            check=False,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return msgspec.json.decode(report.read_bytes())


def prepare(stack: Stack) -> None:
    """Register the playbooks and the credential of the target database."""
    api = stack.url("api")
    playbooks = [(PLAYBOOKS / f"pft_{variant}.yaml").read_bytes() for variant in VARIANTS]
    for url, content, media_type in (
        *((f"{api}/api/catalog/register", text, "text/yaml") for text in playbooks),
        (
            f"{api}/api/credentials",
            msgspec.json.encode(
                {"name": CREDENTIAL, "type": "postgres", "data": {"dsn": stack.url("target")}}
            ),
            "application/json",
        ),
    ):
        answer = http.post(url, content=content, headers={"Content-Type": media_type}, timeout=60)
        assert answer.is_success, answer.text


def start(
    stack: Stack,
    served: Fixture,
    *,
    variant: str = "a",
    facilities: int,
    patients: int,
    workload: Mapping[str, Any] = NOTHING,
) -> Run:
    """Begin a run of one of the playbooks."""
    nonce = served.begin()
    started_s = time.perf_counter()
    execution_id = stack.execute(
        f"pft/{variant}",
        key=nonce,
        facilities=facilities,
        patients=patients,
        api_url=served.api,
        run_nonce=nonce,
        **workload,
    )
    return Run(
        stack=stack,
        fixture=served,
        execution_id=execution_id,
        nonce=nonce,
        variant=variant,
        facilities=facilities,
        patients=patients,
        started_s=started_s,
    )
