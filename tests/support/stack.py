"""A whole stack of its own for a test: started, hurt and ended through the command line."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from tests.support.asking import http, owner_auth, read_owner_headers
from tests.support.java import BRIEF
from tests.support.servers import wait_until

from noetl_cli.stack.processes.loopback import LOOPBACK

PATIENCE_S = 120.0
# A process that is waited for cannot tell a machine that stood still from a command that hangs.
COMMAND_S = 240.0
NOTHING: Mapping[str, str] = {}
OWN_PYTHON = Path(sys.executable)


class Stack:
    """One folder and the `noetl` command on it, this environment's or another's; it blocks."""

    def __init__(self, folder: Path, *, python: Path = OWN_PYTHON) -> None:
        self.folder = folder
        self.python = python
        owner_auth.add_home(folder)

    def noetl(self, *arguments: str, code: int = 0, environ: Mapping[str, str] = NOTHING) -> str:
        """Run one verb, check its exit code, return what it printed."""
        verb, *rest = arguments
        done = subprocess.run(  # noqa: S603 - our own command line
            [str(self.python), "-m", "noetl_cli", verb, "--dir", str(self.folder), *rest],
            check=False,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            env={"PATH": os.defpath, "HOME": str(self.folder.parent), **BRIEF, **environ},
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    def execute(self, path: str, *, key: str, **workload: Any) -> str:
        """Start an execution and return its id; an API that is away now is asked again."""
        request = {"path": path, "workload": workload}
        answers: list[httpx.Response] = []

        def is_accepted() -> bool:
            url = f"{self.url('api')}/api/execute"
            try:
                answer = http.post(url, json=request, headers={"Idempotency-Key": key}, timeout=10)
            except httpx.HTTPError:
                return False
            assert answer.is_success or answer.is_server_error, answer.text
            answers.append(answer)
            return answer.is_success

        wait_until(is_accepted, timeout_s=PATIENCE_S, what=f"{path} is accepted")
        execution_id: str = answers[-1].json()["execution_id"]
        return execution_id

    @property
    def state(self) -> Any:
        """What runs, as the supervisor wrote it."""
        return msgspec.json.decode((self.folder / "state.json").read_bytes())

    def describe_processes(self, *, lines_max: int = 12) -> str:
        """How each process stands, and the last lines of its log: for a test that fails."""
        parts = []
        for name, found in sorted(self.state["processes"].items()):
            log = self.folder / "logs" / f"{name}.log"
            lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
            parts += [f"{name}: {found['phase']}, process {found.get('pid')}", *lines[-lines_max:]]
        return "\n".join(parts)

    def url(self, name: str) -> str:
        """An address: api, postgres, postgres_reader, target, nats, payloads, s3."""
        return str(self.state["urls"][name])

    @property
    def owner_headers(self) -> dict[str, str]:
        """What a client of the API sends, which `tests.support.asking.http` does by itself."""
        return read_owner_headers(self.folder)

    def names(self, service: str) -> list[str]:
        """The processes of one service, such as `worker-1`."""
        return [name for name in self.state["processes"] if name.rpartition("-")[0] == service]

    def pid(self, name: str) -> int | None:
        """The process id, while it runs."""
        found = self.state["processes"].get(name, {}).get("pid")
        return None if found is None else int(found)

    def send(self, name: str, number: int) -> int:
        """Send a signal to one process and return its id."""
        pid = self.pid(name)
        assert pid is not None, f"{name} does not run"
        os.kill(pid, number)
        return pid

    def pause(self, name: str) -> None:
        """Freeze a process."""
        self.send(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a frozen process go on."""
        self.send(name, signal.SIGCONT)

    def kill(self, name: str, *, wait: bool = True) -> None:
        """Kill a process; by default wait until its successor answers."""
        former = self.send(name, signal.SIGKILL)
        if wait:
            self.wait_replaced(name, former=former)

    def wait_replaced(self, name: str, *, former: int) -> None:
        """Wait until another process of that name answers."""
        wait_until(
            lambda: self.pid(name) not in {None, former} and self.is_ready(name),
            timeout_s=PATIENCE_S,
            what=f"{name} is back",
        )

    def is_ready(self, name: str) -> bool:
        """Tell whether a process answers."""
        return bool(self.state["processes"][name]["phase"] == "ready")

    @contextmanager
    def without(self, name: str, *, how: int = signal.SIGKILL) -> Iterator[None]:
        """Keep a process dead for as long as the block lasts; then wait until it answers."""
        hold = self.folder / "hold" / name
        hold.touch()
        former = self.send(name, how)
        try:
            wait_until(lambda: self.pid(name) is None, timeout_s=PATIENCE_S, what=f"{name} is down")
            yield
        finally:
            hold.unlink()
            self.wait_replaced(name, former=former)

    def wipe_nats(self) -> None:
        """Kill the broker, remove every stream, let it come back."""
        with self.without("nats"):
            shutil.rmtree(self.folder / "nats" / "jetstream", ignore_errors=True)


@contextmanager
def running_stack(
    folder: Path,
    *options: str,
    environ: Mapping[str, str] = NOTHING,
    python: Path = OWN_PYTHON,
) -> Iterator[Stack]:
    """A started stack, such as `running_stack(tmp, "--workers", "2", "--set", "WORKER_X=1")`."""
    stack = Stack(folder, python=python)
    # The sites of tests are on this machine. Not by an option: earlier releases have it not.
    allowed = {} if "--allow-http" in options else {"NOETL_WORKER_HTTP_ALLOW": LOOPBACK}
    try:
        stack.noetl("up", *options, environ={**allowed, **environ})
        yield stack
    finally:
        stack.noetl("down", "--purge")
