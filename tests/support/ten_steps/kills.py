"""Kills of the parts of a stack, each at a random moment of a step that the ledger shows begun."""

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import asyncpg
import psutil
from msgspec import Struct
from tests.support.processes import has_open, list_below
from tests.support.servers import wait_until
from tests.support.spark import Cluster, drivers, kill
from tests.support.stack import Stack
from tests.support.ten_steps.contents import RUNNING, STEPS

PATIENCE_S = 900.0
# Of a calm step: a killed run finds a warmer session, and its steps end sooner.
SHARE_MAX = 0.3
EVENTS = """
SELECT event_type, error, context->'tries' AS tries, extract(epoch FROM created_at)::float8 AS at
FROM noetl.event WHERE execution_id = $1 AND node_name = $2 ORDER BY stream_version
"""
ENDS = """
SELECT event_type FROM noetl.event WHERE execution_id = $1
AND event_type IN ('playbook.completed', 'playbook.failed', 'execution.cancelled')
"""
ENDED = ("step.exit", "loop.done")


class Victim(StrEnum):
    """What is killed."""

    WORKER = "worker"
    PLANNER = "planner"
    DRIVER = "Spark driver"
    EXECUTOR = "executor"
    CODE = "code child"
    STACK = "whole stack"


ANYWHERE = (Victim.WORKER, Victim.PLANNER, Victim.STACK)
ON_SPARK = (*ANYWHERE, Victim.DRIVER, Victim.EXECUTOR)
VICTIMS: Mapping[str, Sequence[Victim]] = {
    "clean": ON_SPARK,
    "customers": ANYWHERE,
    "joined": ON_SPARK,
    "merged": ON_SPARK,
    "scored": (*ON_SPARK, Victim.CODE),
    "daily": ANYWHERE,
    "published": ON_SPARK,
    "totals": ANYWHERE,
    "audited": ANYWHERE,
    "report": (*ANYWHERE, Victim.DRIVER, Victim.CODE),
}


class Kill(Struct, frozen=True, kw_only=True):
    """A kill that was made, and what came of it."""

    step: str
    victim: str
    moment_s: float
    usual_s: float
    process_count: int
    has_hit: bool
    what: str
    recovered_s: float


def plan_kills(steps: Sequence[str], *, seed: int) -> list[tuple[str, Victim]]:
    """Choose a victim for each step, by lot among those that were chosen least."""
    chance, counts = random.Random(seed), dict.fromkeys(Victim, 0)
    plan = []
    for step in steps:
        least = min(counts[victim] for victim in VICTIMS[step])
        victim = chance.choice([item for item in VICTIMS[step] if counts[item] == least])
        counts[victim] += 1
        plan.append((step, victim))
    return plan


class Attacker:
    """Kills parts of one stack, and of the cluster on which its Spark runs, if it has one."""

    def __init__(
        self,
        stack: Stack,
        *,
        options: Sequence[str],
        seed: int,
        cluster: Cluster | None = None,
        share_max: float = SHARE_MAX,
    ) -> None:
        self._stack = stack
        self._share_max = share_max
        self._options = options
        self._cluster = cluster
        self._chance = random.Random(seed)

    def attack(self, execution_id: str, step: str, victim: Victim, *, usual_s: float) -> Kill:
        """Wait until a step is due, kill at a random moment of it, wait until it has ended.

        It is due when the step before has ended: a quick one shows its start with its end.
        """
        number = STEPS.index(step)
        if number:
            self._await(execution_id, STEPS[number - 1], _has_ended, what="ends")
        else:
            self._await(
                execution_id, step, lambda events: bool(_list_starts(events)), what="begins"
            )
        moment_s = round(self._chance.uniform(0.0, self._share_max) * usual_s, 2)
        before = self._await_moment(execution_id, step, victim, moment_s)
        killed_at = time.monotonic()
        process_count = self._kill(victim)
        self._await(execution_id, step, _has_ended, what="ends")
        recovered_s = time.monotonic() - killed_at
        after = read_step(self._stack, execution_id, step)
        return Kill(
            step=step,
            victim=victim,
            moment_s=moment_s,
            usual_s=round(usual_s, 2),
            process_count=process_count,
            has_hit=process_count > 0 and not _has_ended(before),
            what=_describe(before, after),
            recovered_s=round(recovered_s, 1),
        )

    def _await_moment(
        self, execution_id: str, step: str, victim: Victim, moment_s: float
    ) -> list[dict[str, Any]]:
        """Wait for a moment at which the victim runs, until the step's end; return its events."""
        until, events = time.monotonic() + moment_s, list[dict[str, Any]]()

        def is_due() -> bool:
            events[:] = read_step(self._stack, execution_id, step)
            is_time = time.monotonic() >= until and self._runs(victim)
            return is_time or _has_ended(events)

        wait_until(is_due, timeout_s=PATIENCE_S, what=f"a moment of step {step}")
        return events

    def _await(
        self,
        execution_id: str,
        step: str,
        is_met: Callable[[list[dict[str, Any]]], bool],
        *,
        what: str,
    ) -> None:
        def look() -> bool:
            events = read_step(self._stack, execution_id, step)
            wrong = [event for event in events if event["event_type"] == "step.failed"]
            assert not wrong, f"{step} failed: {wrong}"
            return is_met(events)

        wait_until(look, timeout_s=PATIENCE_S, what=f"step {step} {what}")

    def _runs(self, victim: Victim) -> bool:
        """Tell whether there is something to kill now."""
        return victim in ANYWHERE or bool(self._list_processes(victim))

    def _kill(self, victim: Victim) -> int:
        match victim:
            case Victim.WORKER | Victim.PLANNER:
                self._stack.kill(f"{victim}-1")
                return 1
            case Victim.STACK:
                return self._kill_stack()
            case _:
                processes = self._list_processes(victim)
                kill(processes)
                return len(processes)

    def _list_processes(self, victim: Victim) -> list[psutil.Process]:
        """List the processes of a part of the worker or of Spark; none while the worker is away."""
        worker = self._stack.pid("worker-1")
        if worker is None:
            return []
        match victim:
            case Victim.DRIVER:
                return drivers(worker)
            case Victim.CODE:
                return [item for item in list_below(worker) if has_open(item, RUNNING)]
            case _:
                assert self._cluster is not None, "only a cluster has executors of its own"
                # The youngest: those of the session before may not have ended yet.
                return self._cluster.executors()[-1:]

    def _kill_stack(self) -> int:
        supervisor = psutil.Process(self._stack.state["supervisor_pid"])
        processes = [supervisor, *supervisor.children(recursive=True)]
        kill(processes)
        psutil.wait_procs(processes, timeout=PATIENCE_S)
        self._stack.noetl("up", *self._options)
        return len(processes)


def read_step(stack: Stack, execution_id: str, step: str) -> list[dict[str, Any]]:
    """Read a step's events from the ledger; none while the database is away."""
    return _ask(stack, EVENTS, int(execution_id), step)


def list_ends(stack: Stack, execution_id: str) -> list[str]:
    """List an execution's last events; none while it runs or the database is away."""
    return [event["event_type"] for event in _ask(stack, ENDS, int(execution_id))]


def time_step(stack: Stack, execution_id: str, step: str) -> float:
    """Return the seconds from a step's first command to its end."""
    events = read_step(stack, execution_id, step)
    ends = [event["at"] for event in events if event["event_type"] in ENDED]
    return float(max(ends) - _list_starts(events)[0]["at"])


def _list_starts(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # Its worker tells that a command has started half a second later.
    return [
        event for event in events if event["event_type"] in {"command.issued", "frame.dispatched"}
    ]


def _has_ended(events: list[dict[str, Any]]) -> bool:
    return any(event["event_type"] in ENDED for event in events)


def _describe(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> str:
    if _has_ended(before):
        return "the step had ended"
    new = after[len(before) :]
    kinds = [event["event_type"] for event in new]
    names = ("command.reissued", "command.started", "frame.abandoned", "call.error")
    counted = [f"{kinds.count(name)} {name}" for name in names if name in kinds]
    tries = [item for event in new for item in json.loads(event["tries"] or "[]")]
    counted += [f"tried again after {item['kind']}" for item in tries]
    return ", ".join(counted) or "the attempt went on"


def _ask(stack: Stack, query: str, *values: Any) -> list[dict[str, Any]]:
    async def ask() -> list[dict[str, Any]]:
        connection = await asyncpg.connect(stack.url("postgres_reader"), timeout=10)
        try:
            return [dict(row) for row in await connection.fetch(query, *values)]
        finally:
            await connection.close()

    with contextlib.suppress(OSError, asyncpg.PostgresError):
        return asyncio.run(ask())
    return []
