"""One service as its own process, told everything by its environment."""

import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.servers import wait_until

READY_TIMEOUT_S = 120.0


class Service:
    """A running service; every method blocks."""

    def __init__(self, name: str, environ: Mapping[str, str], *, log: Path) -> None:
        self.name = name
        self.log = log
        self.port = free_port()
        prefix = f"NOETL_{name.upper()}_"
        self.environ = {
            "PATH": os.defpath,
            f"{prefix}HEALTH_PORT": str(self.port),
            **{f"{prefix}{field}": value for field, value in environ.items()},
        }
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as out:
            return subprocess.Popen(  # noqa: S603 - our own service
                [sys.executable, "-m", f"noetl_{self.name}"], env=self.environ, stderr=out
            )

    def get(self, path: str) -> tuple[int, str]:
        """Ask the health port; 0 while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=3) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as failure:
            return failure.code, failure.read().decode()
        except OSError:
            return 0, ""

    def wait_ready(self) -> None:
        """Wait until the service says that it is ready; show its log when it ends instead."""

        def is_ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self.get("/readyz")[0] == 200

        wait_until(is_ready, timeout_s=READY_TIMEOUT_S, what=f"{self.name} is ready")

    def stop(self) -> int:
        """Ask it to end and return its exit code."""
        self.process.terminate()
        return self.process.wait(READY_TIMEOUT_S)

    def kill(self) -> None:
        """End it without a warning."""
        self.process.kill()
        self.process.wait()


@contextmanager
def service(name: str, environ: Mapping[str, str], *, log: Path) -> Iterator[Service]:
    """Start a service; kill it at the end if it still runs."""
    started = Service(name, environ, log=log)
    try:
        yield started
    finally:
        started.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
