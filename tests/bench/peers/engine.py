"""One other engine while it is measured: its program called, its workers killed, its CPU counted."""

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec import Struct
from tests.bench.cpu import family_cpu_s
from tests.bench.peers.installing import PeerError, last_line
from tests.support.servers import PostgresServer

PROGRAMS = Path("tests/bench/peers")
PATIENCE_S = 600.0

Working = list["subprocess.Popen[bytes]"]


class Peer(Struct, frozen=True, kw_only=True):
    """How an engine is run, and what it is spared."""

    about: str
    # Processes that work; none where the asking process does it itself.
    workers: int = 0
    has_server: bool = False
    rounds: int = 3
    singles: int = 50
    requests: int = 2_000
    # Workloads beside the usual ones.
    others: Sequence[str] = ()


class Engine(Struct, frozen=True, kw_only=True):
    """An installed engine with a database of its own."""

    name: str
    peer: Peer
    python: Path
    postgres: PostgresServer
    dsn: str
    target: str
    environ: Mapping[str, str]
    # Processes that run all the time, such as a server of its own.
    standing: Sequence[int] = ()

    def install(self) -> None:
        """Let it make its tables."""
        self._finish(self._command("install"))

    def drive(self, workload: str, **options: Any) -> Any:
        """Run a workload to its end; return what it told, with the CPU of all that took part."""
        with self.working(site=options.get("site", "")) as working:
            before = self._spent(working)
            answer = msgspec.json.decode(self._finish(self._command("drive", workload, **options)))
            answer["cpu_s"] += self._spent(working) - before
        return answer

    def begin(self, role: str, workload: str = "", **options: Any) -> "subprocess.Popen[bytes]":
        """Start its program without waiting for it."""
        return subprocess.Popen(  # noqa: S603 - our own command line
            self._command(role, workload, **options),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(self.environ),
        )

    @contextmanager
    def working(self, **options: Any) -> Iterator[Working]:
        """Let its workers work until the block ends; the list may be changed meanwhile."""
        working = [self.begin("serve", **options) for _ in range(self.peer.workers)]
        try:
            yield working
        finally:
            kill(working)

    def _command(self, role: str, workload: str = "", **options: Any) -> list[str]:
        given = {"dsn": self.dsn, "target": self.target, **options}
        flags = [text for key, value in given.items() for text in (f"--{key}", str(value))]
        program = str(PROGRAMS / f"{self.name}_program.py")
        return [str(self.python), program, role, *([workload] if workload else []), *flags]

    def _finish(self, command: list[str]) -> str:
        try:
            done = subprocess.run(  # noqa: S603 - our own command line
                command,
                capture_output=True,
                text=True,
                timeout=PATIENCE_S,
                env=dict(self.environ),
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise PeerError(f"not finished after {PATIENCE_S:.0f} s") from None
        if done.returncode:
            raise PeerError(last_line(done.stderr))
        return (done.stdout.strip().splitlines() or ["{}"])[-1]

    def _spent(self, working: Working) -> float:
        total = 0.0
        for pid in [self.postgres.pid, *self.standing, *(process.pid for process in working)]:
            with suppress(psutil.NoSuchProcess):
                total += family_cpu_s(psutil.Process(pid))
        return total


def kill(working: Working) -> None:
    """End processes without a warning."""
    for process in working:
        process.kill()
        process.wait()
    working.clear()
