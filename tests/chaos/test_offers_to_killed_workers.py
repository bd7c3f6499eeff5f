"""Offers whose worker is killed: before it asks, and with what it was granted."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import asyncpg
import psutil
import pytest
from tests.support.asking import http
from tests.support.parity import assert_parity
from tests.support.servers import wait_until
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(240)

NEAR = "near"
# It shares the NATS user of another worker, which its id begins with.
NEAR_ID = f"worker-1.{NEAR}"
PATIENCE_S = 120.0
PLAYBOOK = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: offered, path: chaos/offered}
workload: {order: ""}
workflow:
  - step: make
    tool: {kind: python, code: "return {'rows': ['x' * 40000]}"}
    next: {arcs: [{step: wait}]}
  - step: wait
    tool: {kind: external, mode: signal, correlation_key: "{{ workload.order }}", timeout: 1h}
    next: {arcs: [{step: use}]}
  - step: use
    tool:
      kind: postgres
      auth: pg_pft
      query:
        - "SELECT pg_advisory_xact_lock_shared(4712)"
        - "INSERT INTO chaos_offered VALUES (:key, :size)"
      params: {key: "{{ workload.order }}", size: "{{ make.rows[0] | length }}"}
"""


@contextmanager
def worker_on_another_node(stack: Stack) -> Iterator[subprocess.Popen[bytes]]:
    """Run one more worker of the pool that says that it is elsewhere."""
    pid = stack.pid("worker-1")
    assert pid is not None
    environ = {
        **psutil.Process(pid).environ(),
        "NOETL_WORKER_INSTANCE": NEAR,
        "NOETL_WORKER_NODE": "elsewhere",
        "NOETL_WORKER_HEALTH_PORT": "0",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "noetl_worker"],
        env=environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def events(stack: Stack, execution_id: str, kind: str, step: str = "use") -> list[dict[str, Any]]:
    """The contexts of a step's events of one type."""
    answer = http.get(
        f"{stack.url('api')}/api/executions/{execution_id}/events",
        params={"limit": 1000},
        timeout=60,
    )
    return [
        event["context"]
        for event in answer.raise_for_status().json()["events"]
        if event["event_type"] == kind and event["context"].get("step") == step
    ]


def nodes(stack: Stack) -> set[str]:
    """Where the workers are that the planner has heard lately."""
    workers = http.get(f"{stack.url('api')}/api/workers", timeout=60).json()["workers"]
    return {worker["locality"]["node"] for worker in workers}


def send(stack: Stack, key: str) -> None:
    """Send the message that an execution waits for."""
    url = f"{stack.url('api')}/api/signals/{key}"
    http.post(url, json={}, timeout=60).raise_for_status()


def until(stack: Stack, execution_id: str, kind: str, step: str = "use") -> None:
    wait_until(
        lambda: bool(events(stack, execution_id, kind, step)),
        timeout_s=PATIENCE_S,
        what=f"{kind} of {step}",
    )


def ends(stack: Stack, execution_id: str) -> None:
    url = f"{stack.url('api')}/api/executions/{execution_id}/status"
    wait_until(
        lambda: http.get(url, timeout=60).json().get("status") == "COMPLETED",
        timeout_s=PATIENCE_S,
        what=f"execution {execution_id} completes",
    )


class Gate:
    """Keeps every `use` waiting until it is opened; looks at what they wrote."""

    def __init__(self, db: "asyncpg.Connection[Any]", runner: asyncio.Runner) -> None:
        self._db = db
        self._runner = runner

    def open(self) -> None:
        """Let all of them through."""
        self._runner.run(self._db.execute("SELECT pg_advisory_unlock(4712)"))

    def rows(self) -> list[tuple[str, int]]:
        """What has been written."""
        query = "SELECT key, size FROM chaos_offered ORDER BY key"
        return [(row["key"], row["size"]) for row in self._runner.run(self._db.fetch(query))]


@contextmanager
def closed_gate(stack: Stack) -> Iterator[Gate]:
    """Close the gate before anybody comes."""
    with asyncio.Runner() as runner:
        db = runner.run(asyncpg.connect(stack.url("target")))
        try:
            runner.run(db.execute("CREATE TABLE chaos_offered (key text, size integer)"))
            runner.run(db.execute("SELECT pg_advisory_lock(4712)"))
            yield Gate(db, runner)
        finally:
            runner.run(db.close())


def test_what_a_killed_worker_was_offered_or_granted_runs_once_elsewhere(stack: Stack) -> None:
    url = f"{stack.url('api')}/api/catalog/register"
    http.post(url, content=PLAYBOOK, headers={"Content-Type": "text/yaml"}, timeout=60)
    with worker_on_another_node(stack) as near, closed_gate(stack) as gate:
        wait_until(lambda: "elsewhere" in nodes(stack), timeout_s=PATIENCE_S, what="it is heard")
        with ExitStack() as others:
            for name in ("worker-1", "worker-2"):
                others.enter_context(stack.without(name))
            granted, offered = (
                stack.execute("chaos/offered", key=f"offered-{order}", order=order)
                for order in ("a", "b")
            )
            for item in (granted, offered):
                until(stack, item, "command.parked", "wait")
        wait_until(lambda: len(nodes(stack)) == 2, timeout_s=PATIENCE_S, what="all are heard")

        send(stack, "a")
        until(stack, granted, "command.started")
        near.send_signal(signal.SIGKILL)
        near.wait()
        send(stack, "b")
        until(stack, offered, "command.reissued")
        gate.open()
        for item in (granted, offered):
            ends(stack, item)
        assert gate.rows() == [("a", 40000), ("b", 40000)]

    # It was offered to the dead one, who never asked; nobody lost an attempt by it.
    (issued,) = events(stack, offered, "command.issued")
    (again,) = events(stack, offered, "command.reissued")
    (begun,) = events(stack, offered, "command.started")
    assert (issued["target"], again["reason"]) == (NEAR_ID, "not_taken")
    assert begun["worker_id"] != NEAR_ID
    # It had this one, and lost it with its lease.
    first, second = events(stack, granted, "command.started")
    assert (first["worker_id"], first["placement"]["distance"]) == (NEAR_ID, "node")
    assert second["worker_id"] != NEAR_ID
    for item in (granted, offered):
        assert len(events(stack, item, "command.completed")) == 1
        assert len(events(stack, item, "call.done")) == 1
        assert_parity(stack, item)
