"""An execution on a stack, from outside, with what it cost: wall time, CPU seconds, memory."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from tests.bench.cpu import spent
from tests.proof import peaks
from tests.support.asking import http
from tests.support.servers import wait_until
from tests.support.stack import Stack

TERMINAL = {"COMPLETED", "FAILED", "CANCELLED"}
PATIENCE_S = 3600.0


class Ran(Struct, frozen=True, kw_only=True):
    """An execution that has ended well."""

    execution_id: str
    variables: dict[str, Any]
    seconds: float
    cpu_s: dict[str, float]
    memory_mib: dict[str, int]


def keep(stack: Stack, name: str, dsn: str) -> None:
    """Keep a credential of a PostgreSQL database."""
    body = {"name": name, "type": "postgres", "data": {"dsn": dsn}}
    answer = http.post(f"{stack.url('api')}/api/credentials", json=body, timeout=10)
    assert answer.is_success, answer.text


def register(stack: Stack, text: str) -> str:
    """Register a playbook and return its path."""
    answer = http.post(f"{stack.url('api')}/api/catalog/register", content=text, timeout=10)
    assert answer.is_success, answer.text
    return str(answer.json()["path"])


def begin(stack: Stack, path: str, workload: Mapping[str, Any]) -> str:
    """Ask for a run; return the execution's id."""
    body = {"path": path, "workload": dict(workload)}
    answer = http.post(f"{stack.url('api')}/api/execute", json=body, timeout=10)
    assert answer.is_success, answer.text
    return str(answer.json()["execution_id"])


def status(stack: Stack, execution_id: str) -> dict[str, Any]:
    """What is shown of an execution; nothing while nothing is projected."""
    answer = http.get(f"{stack.url('api')}/api/executions/{execution_id}/status", timeout=30)
    shown: dict[str, Any] = answer.json() if answer.is_success else {"status": None}
    return shown


def run(stack: Stack, path: str, **workload: Any) -> Ran:
    """Run a playbook to its end, which must be a good one."""
    before, began = spent(stack), time.perf_counter()
    with peaks.peaks(stack) as seen:
        execution_id = begin(stack, path, workload)

        def is_over() -> bool:
            time.sleep(0.2)
            return status(stack, execution_id)["status"] in TERMINAL

        wait_until(is_over, timeout_s=PATIENCE_S, what=f"the end of {path}")
        seconds = time.perf_counter() - began
    shown, after = status(stack, execution_id), spent(stack)
    assert shown["status"] == "COMPLETED", msgspec.json.encode(shown).decode()
    return Ran(
        execution_id=execution_id,
        variables=shown["variables"],
        seconds=round(seconds, 2),
        cpu_s={part: round(cpu - before.get(part, 0.0), 1) for part, cpu in after.items()},
        memory_mib=seen,
    )


def costs(found: dict[str, Any]) -> str:
    """Write what a run took, as a table; CPU time of Java counts to the worker that started it."""
    parts = sorted(found["memory_mib"])
    rows = [
        f"| {part} | {found['cpu_s'].get(part, '')} | {found['memory_mib'][part]} |"
        for part in parts
    ]
    total = round(sum(found["cpu_s"].values()), 1)
    apart = peaks.TASKS in found["memory_mib"] or peaks.JAVA not in found["memory_mib"]
    return "\n".join(
        [
            f"Wall time {found['seconds']} s, CPU {total} s in all. CPU time of Spark counts to the worker"
            + ("." if apart else ", and so does the memory of its Python processes."),
            "",
            "| part | CPU s | most memory, MiB |",
            "|---|---:|---:|",
            *rows,
            "",
        ]
    )
