"""Ten thousand executions open at the same time: each waits for a message, gets it, and ends."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg
import httpx
from msgspec import Struct
from rich.console import Console
from tests.bench import meter
from tests.bench.client import HEAD, Client
from tests.load import samples
from tests.load.auditing import audit, audit_wrong, restarts
from tests.support.stack import Stack, running_stack

EXECUTIONS = 10_000
WORKERS = 2
# Requests at once, as from so many callers.
CALLERS = 16
EVERY_S = 5.0
POLL_S = 2.0
PATIENCE_S = 3_600.0
TRIES_MAX = 5
PLAYBOOK = (
    HEAD
    + """metadata: {name: crowd, path: load/crowd}
workload: {n: 0}
workflow:
  - step: wait
    tool:
      kind: external
      mode: signal
      correlation_key: "crowd-{{ workload.n }}"
      schema: {paid: number}
      timeout: 6h
    set: {ctx.paid: "{{ wait.paid }}"}
    next: {arcs: [{step: after}]}
  - step: after
    tool: {kind: noop, result: "{{ ctx.paid + workload.n }}"}
    set: {ctx.total: "{{ after }}"}
"""
)
_COUNTS = """
SELECT status, count(*) AS n,
       count(*) FILTER (WHERE (variables->>'total')::int = 2 * (workload->>'n')::int + 1) AS right,
       count(DISTINCT (workload->>'n')::int) AS different
FROM noetl.execution GROUP BY status
"""
_PARKED = "SELECT count(*) FROM noetl.event WHERE event_type = 'command.parked'"
console = Console()


class Counted(Struct, frozen=True, kw_only=True):
    """Executions by status, with the right variables, with different inputs; parked commands."""

    by_status: dict[str, int]
    right: int
    different: int
    parked: int

    @property
    def live(self) -> int:
        """How many have not ended."""
        return sum(self.by_status.get(status, 0) for status in ("PENDING", "RUNNING"))

    def waits(self, executions: int) -> bool:
        """Tell whether all of them run and have let go of their workers."""
        return self.by_status == {"RUNNING": executions} and self.parked >= executions


def run(folder: Path, *, executions: int = EXECUTIONS) -> dict[str, Any]:
    """Open all of them, look, let all of them go on, count."""
    samples_file = folder / "samples.jsonl"
    options = ("--workers", str(WORKERS), "--set", f"WORKER_SHARED_DIRECTORY={_shared(folder)}")
    with running_stack(folder / "stack", *options) as stack:
        Client(stack).register(PLAYBOOK)
        before, began = meter.costs(stack), time.monotonic()
        with samples.sampling(
            stack, samples_file, every_s=EVERY_S, shared=folder / "shared", say=console.print
        ):
            found = asyncio.run(_crowd(stack, executions))
        spent = meter.costs(stack).since(before)
        taken = samples.read(samples_file)
        found |= {
            "seconds": round(time.monotonic() - began),
            "each": spent.per(executions),
            "planner_mib": _span([item.held["planner-1"].family_mib for item in taken]),
            "worker_mib": _span([item.held["worker-1"].family_mib for item in taken]),
            "projector_mib": _span([item.held["projector-1"].family_mib for item in taken]),
            "connections": max(item.connections for item in taken),
            "outbox_rows": max(item.outbox_rows for item in taken),
            "restarts": restarts(stack),
            "audit": audit(stack),
        }
    return found


def _shared(folder: Path) -> Path:
    shared = folder / "shared"
    shared.mkdir()
    return shared


def _span(figures: list[float]) -> dict[str, float]:
    return {"first": figures[0], "most": max(figures), "last": figures[-1]}


async def _crowd(stack: Stack, executions: int) -> dict[str, Any]:
    api, dsn = stack.url("api"), stack.url("postgres")
    limits = httpx.Limits(max_connections=CALLERS)
    async with httpx.AsyncClient(
        base_url=api, headers=stack.owner_headers, timeout=600, limits=limits
    ) as client:
        began = time.monotonic()
        repeated = await _all(executions, lambda n: _submit(client, n))
        submitted = time.monotonic()
        console.print(f"{executions} submitted in {submitted - began:.0f} s")
        counted = await _until(dsn, lambda one: one.waits(executions), "all wait")
        waiting = time.monotonic()
        console.print(f"all wait after {waiting - began:.0f} s: {counted.by_status}")
        open_at_once = counted.by_status.get("RUNNING", 0)
        released = time.monotonic()
        repeated += await _all(executions, lambda n: _signal(client, n))
        signalled = time.monotonic()
        console.print(f"all told in {signalled - released:.0f} s")
        last = await _until(dsn, lambda one: not one.live, "all end")
        ended = time.monotonic()
    return {
        "executions": executions,
        "open_at_once": open_at_once,
        "repeated": repeated,
        "submitted_per_s": round(executions / (submitted - began), 1),
        "waiting_per_s": round(executions / (waiting - began), 1),
        "signalled_per_s": round(executions / (signalled - released), 1),
        "ended_per_s": round(executions / (ended - released), 1),
        "statuses": last.by_status,
        "right": last.right,
        "different": last.different,
    }


async def _all(count: int, ask: Callable[[int], Awaitable[int]]) -> int:
    """Ask for each number, so many at once; return how many had to be asked for again."""
    numbers = iter(range(count))

    async def caller() -> int:
        return sum([await ask(number) for number in numbers])

    async with asyncio.TaskGroup() as group:
        callers = [group.create_task(caller()) for _ in range(CALLERS)]
    return sum(item.result() for item in callers)


async def _submit(client: httpx.AsyncClient, number: int) -> int:
    body = {"path": "load/crowd", "workload": {"n": number}}
    return await _post(client, "/api/execute", body, {"Idempotency-Key": f"crowd-{number}"})


async def _signal(client: httpx.AsyncClient, number: int) -> int:
    return await _post(client, f"/api/signals/crowd-{number}", {"paid": number + 1}, {})


async def _post(client: httpx.AsyncClient, path: str, body: Any, headers: dict[str, str]) -> int:
    """Ask as a caller does whom the API refuses for a moment; return how often it was refused."""
    for turn in range(TRIES_MAX):
        try:
            answer = await client.post(path, json=body, headers=headers)
        except httpx.TransportError as failure:
            console.print(f"{path}: {failure!r}")
        else:
            if answer.is_success:
                return turn
            assert answer.is_server_error, answer.text
            console.print(f"{path}: {answer.status_code} {answer.text[:200]}")
        await asyncio.sleep(2**turn)
    raise AssertionError(f"{path} is refused")


async def _until(dsn: str, is_so: Callable[[Counted], bool], what: str) -> Counted:
    until = time.monotonic() + PATIENCE_S
    connection = await asyncpg.connect(dsn)
    try:
        while not is_so(counted := await _counted(connection)):
            if time.monotonic() > until:
                raise TimeoutError(f"not within {PATIENCE_S} s: {what}; {counted}")
            await asyncio.sleep(POLL_S)
        return counted
    finally:
        await connection.close()


async def _counted(connection: asyncpg.Connection) -> Counted:
    rows = await connection.fetch(_COUNTS)
    return Counted(
        by_status={row["status"]: row["n"] for row in rows},
        right=sum(row["right"] for row in rows),
        different=max((row["different"] for row in rows), default=0),
        parked=await connection.fetchval(_PARKED),
    )


def wrong(found: dict[str, Any]) -> list[str]:
    """Name what must not be: an execution that was lost, doubled, or ended otherwise."""
    count = found["executions"]
    counts = {name: found[name] for name in ("open_at_once", "right", "different")}
    return [
        *(f"{name}: {item}, not {count}" for name, item in counts.items() if item != count),
        *audit_wrong(found["audit"]),
    ]
