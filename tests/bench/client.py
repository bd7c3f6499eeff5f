"""The front door, and the playbooks that go through it."""

import time
from typing import Any

import httpx
from tests.support.asking import ENDS
from tests.support.stack import Stack

TERMINAL = {"COMPLETED", "FAILED", "CANCELLED"}
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
        answer = self.http.post("/api/execute", json={"path": path, "workload": workload})
        answer.raise_for_status()
        execution_id: str = answer.json()["execution_id"]
        return execution_id

    def run(self, path: str, **workload: Any) -> float:
        """Run a playbook; return the seconds from submission to the end that the client sees."""
        started = time.perf_counter()
        url = f"/api/executions/{self.submit(path, **workload)}/stream"
        with self.http.stream("GET", url, params={"event_type": ENDS}) as stream:
            lines = list(stream.iter_lines())
        seconds = time.perf_counter() - started
        assert any("playbook.completed" in line for line in lines), lines[-5:]
        return seconds

    def wait(self, execution_id: str) -> None:
        """Wait for an execution's end, which must be a good one."""
        while True:
            status = self.http.get(f"/api/executions/{execution_id}/status").json()["status"]
            if status in TERMINAL:
                assert status == "COMPLETED", (execution_id, status)
                return
            time.sleep(0.05)
