"""Checks of limits: the pool's name, and the numbers of workload, loops and reduces."""

from typing import Any

import msgspec

from noetl_contracts.commands.waits import WAIT_S_MAX
from noetl_contracts.commands.worker_pools import POOL_HINT, is_pool_name
from noetl_playbook.model.playbook import Loop, Playbook, Reduce
from noetl_playbook.source.document_reader import DocumentReader, describe_value, list_step_paths
from noetl_playbook.source.problems import Path


def check_pool_name(reading: DocumentReader, pool: str | None, path: Path) -> None:
    """Report a malformed pool name; only the deployment knows whether the pool exists."""
    if pool is not None and not is_pool_name(pool):
        reading.report_problem(
            "E104", (*path, "pool"), f"{describe_value(pool)} is not a pool", hint=POOL_HINT
        )


ITEMS_MAX = 100_000
SHARDS_MAX = 10_000
CTX_BYTES_MAX = 4 * 1024 * 1024
WORKLOAD_BYTES_MAX = 4 * 1024 * 1024
# What `executor.spec.policy.limits` may lower, with the highest value of each.
LIMITS_MAX = {
    "max_steps": 100_000,
    "max_jumps": 100_000,
    "max_in_flight": 10_000,
    "attempts": 1_000,
    "delay": WAIT_S_MAX,
    "max_delay": WAIT_S_MAX,
    "max_items": ITEMS_MAX,
    "max_shards": SHARDS_MAX,
    "max_ctx_bytes": CTX_BYTES_MAX,
}


def check_limits(reading: DocumentReader, playbook: Playbook) -> None:
    """Report what is larger than an execution may be."""
    _check_workload(reading, playbook.workload)
    path: Path = ("executor", "spec", "policy", "limits")
    for name, value in playbook.executor.spec.policy.limits.items():
        maximum = LIMITS_MAX.get(name)
        if maximum is None:
            reading.report_unknown((*path, name), LIMITS_MAX, noun="limit")
        elif not 1 <= value <= maximum:
            reading.report_problem("E607", (*path, name), f"{name} is between 1 and {maximum}")
    for step_path, step in list_step_paths(reading, playbook):
        if step.loop is not None:
            _check_loop(reading, step.loop, (*step_path, "loop"))
        if step.reduce is not None:
            _check_reduce(reading, step.reduce, (*step_path, "reduce"))


def _check_workload(reading: DocumentReader, workload: dict[str, Any]) -> None:
    size = len(msgspec.json.encode(workload))
    if size > WORKLOAD_BYTES_MAX:
        reading.report_problem(
            "E608",
            ("workload",),
            f"workload has {size} bytes, and at most {WORKLOAD_BYTES_MAX} are accepted",
            of_key=True,
        )


def _check_loop(reading: DocumentReader, loop: Loop, path: Path) -> None:
    if isinstance(loop.in_, list) and len(loop.in_) > ITEMS_MAX:
        reading.report_problem(
            "E606", (*path, "in"), f"a list in a loop has at most {ITEMS_MAX} items"
        )
    fanout = loop.spec.fanout
    if fanout is None:
        return
    inner_path = (*path, "spec", "fanout")
    if isinstance(fanout.partitions, int) and fanout.partitions > SHARDS_MAX:
        message = f"a fan-out has at most {SHARDS_MAX} shards"
        reading.report_problem("E606", (*inner_path, "partitions"), message)


def _check_reduce(reading: DocumentReader, reduce: Reduce, path: Path) -> None:
    for name, minimum in (("fan_in", 2), ("max_in_flight", 1)):
        value = getattr(reduce.spec, name)
        if isinstance(value, int | float) and value < minimum:
            reading.report_problem("E502", (*path, "spec", name), f"{name} is at least {minimum}")
