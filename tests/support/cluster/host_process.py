"""A process of the cluster on this machine, with its log."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

STOP_S = 20.0
POLL_S = 0.2
LOG_TAIL_BYTES = 3000


class HostProcess:
    """Starts with the object, and ends when it is stopped."""

    def __init__(self, name: str, command: list[str], *, folder: Path, **environ: str) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - a program of the cluster
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={"PATH": os.defpath + ":/usr/sbin:/sbin", "HOME": str(folder), **environ},
            )

    def is_running(self) -> bool:
        """Tell whether it has not ended."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it, by force when it does not end by itself."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @contextmanager
    def held_still(self) -> Iterator[None]:
        """Let it do nothing while the block runs."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def read_log(self) -> str:
        """Read the end of what it said."""
        return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")

    def wait_until(self, is_true: Callable[[], bool], *, timeout_s: float, what: str) -> None:
        """Wait for a condition; raise with the log when it does not come or the process ends."""
        until = time.monotonic() + timeout_s
        while not is_true():
            if not self.is_running():
                raise RuntimeError(f"{self.name} has ended: {self.read_log()}")
            if time.monotonic() > until:
                raise TimeoutError(f"not within {timeout_s} s: {what}: {self.read_log()}")
            time.sleep(POLL_S)
