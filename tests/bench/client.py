"""The front door, and the playbooks that go through it."""

import time
from typing import Any

import httpx
from tests.support.asking import ENDS
from tests.support.stack import Stack

TERMINAL = {"COMPLETED", "FAILED", "CANCELLED"}
WAIT_S = 60
HEAD = "apiVersion: noetl.io/v2\nkind: Playbook\n"


class Client:
    """The API, its connection kept open."""

    def __init__(self, stack: Stack) -> None:
        self.http = httpx.Client(base_url=stack.url("api"), timeout=600)

    def register(self, text: str) -> None:
        """Register a playbook."""
        answer = self.http.post(
            "/api/catalog/register", content=text, headers={"Content-Type": "text/yaml"}
        )
        answer.raise_for_status()

    def keep(self, name: str, dsn: str) -> None:
        """Keep a credential of a PostgreSQL database."""
        answer = self.http.post(
            "/api/credentials", json={"name": name, "type": "postgres", "data": {"dsn": dsn}}
        )
        answer.raise_for_status()

    def submit(self, path: str, **workload: Any) -> str:
        """Ask for a run; return the execution's id."""
        execution_id: str = self._execute(path, workload).json()["execution_id"]
        return execution_id

    def run(self, path: str, **workload: Any) -> float:
        """Run a playbook; return the seconds from submission to the end that the client sees."""
        started = time.perf_counter()
        answer = self._execute(path, workload, Prefer=f"wait={WAIT_S}")
        status = answer.json()["status"]
        if status not in TERMINAL:
            # It takes longer than a request waits, or this is an API that does not wait.
            status = self._followed(answer.json()["execution_id"])
        seconds = time.perf_counter() - started
        assert status == "COMPLETED", (path, status)
        return seconds

    def _execute(self, path: str, workload: dict[str, Any], **headers: str) -> httpx.Response:
        asked = {"path": path, "workload": workload}
        return self.http.post("/api/execute", json=asked, headers=headers).raise_for_status()

    def _followed(self, execution_id: str) -> str:
        url = f"/api/executions/{execution_id}/stream"
        with self.http.stream("GET", url, params={"event_type": ENDS}) as stream:
            lines = list(stream.iter_lines())
        return "COMPLETED" if any("playbook.completed" in line for line in lines) else "not over"

    def wait(self, execution_id: str) -> None:
        """Wait for an execution's end, which must be a good one."""
        while True:
            status = self.http.get(f"/api/executions/{execution_id}/status").json()["status"]
            if status in TERMINAL:
                assert status == "COMPLETED", (execution_id, status)
                return
            time.sleep(0.05)
