"""A person at a terminal: writes playbooks, types commands, reads what comes back."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
from msgspec import Struct
from tests.support.asking import http
from tests.support.servers import wait_until
from tests.support.stack import Stack

PATIENCE_S = 120.0
TARGET = "pg_target"
FRONT = """\
apiVersion: noetl.io/v2
kind: Playbook
metadata: {{name: {name}, path: e2e/{name}}}
"""


class Answer(Struct, frozen=True, kw_only=True):
    """How a command ended."""

    code: int
    out: str
    err: str


class CommandLine:
    """The `noetl` command pointed at one stack, and a folder for playbooks."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.stack = stack
        self.folder = folder

    def command(self, *arguments: str) -> list[str]:
        """Spell a command line."""
        return [sys.executable, "-m", "noetl_cli", *arguments]

    @property
    def environ(self) -> dict[str, str]:
        """Everything that the command is told by its environment."""
        home = str(self.stack.folder)
        return {"PATH": os.defpath, "HOME": str(self.folder), "NOETL_HOME": home}

    def type(self, *arguments: str) -> Answer:
        """Run a command to its end; whatever it says, it is no traceback."""
        done = subprocess.run(  # noqa: S603 - our own command line
            self.command(*arguments),
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=self.environ,
        )
        assert "Traceback" not in done.stdout + done.stderr, done.stderr
        return Answer(code=done.returncode, out=done.stdout, err=done.stderr)

    def write(self, name: str, body: str) -> str:
        """Write a playbook and return its file's name."""
        file = self.folder / f"{name}.yaml"
        file.write_text(FRONT.format(name=name) + body)
        return str(file)

    def begin(self, file: str, *options: str) -> str:
        """Start a playbook without watching; return the execution's id."""
        begun = self.type("run", file, "--detach", *options)
        assert begun.code == 0, begun
        return begun.out.strip()

    def get(self, path: str, **query: str) -> httpx.Response:
        """Ask the API."""
        return http.get(self.stack.url("api") + path, params=query, timeout=60)

    def status(self, execution_id: str) -> Any:
        """What the projection says of an execution."""
        answer = self.get(f"/api/executions/{execution_id}/status")
        return answer.json() if answer.is_success else {"status": None}

    def wait_for(self, execution_id: str, status: str) -> Any:
        """Wait until the projection shows a status; return all that it shows."""
        wait_until(
            lambda: self.status(execution_id)["status"] == status,
            timeout_s=PATIENCE_S,
            what=f"execution {execution_id} is {status}",
        )
        return self.status(execution_id)

    def events(self, execution_id: str) -> list[dict[str, Any]]:
        """The execution's history, from the API."""
        answer = self.get(f"/api/executions/{execution_id}/events", limit="1000")
        assert answer.is_success, answer.text
        found: list[dict[str, Any]] = answer.json()["events"]
        return found

    def wait_for_event(self, execution_id: str, kind: str, count: int = 1) -> None:
        """Wait until the history holds that many events of a type."""
        wait_until(
            lambda: self.kinds(execution_id).count(kind) >= count,
            timeout_s=PATIENCE_S,
            what=f"{count} {kind} of {execution_id}",
        )

    def kinds(self, execution_id: str) -> list[str]:
        """The types of the events, in order."""
        return [str(event["event_type"]) for event in self.events(execution_id)]
