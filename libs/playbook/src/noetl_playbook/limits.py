"""The static limits of a document that are not about its shape."""

from typing import Any

import msgspec

from noetl_contracts.parking import WAIT_S_MAX
from noetl_playbook.model import Loop, Playbook, Reduce
from noetl_playbook.placed import placed
from noetl_playbook.problems import Path
from noetl_playbook.reading import Reading

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


def check_limits(reading: Reading, playbook: Playbook) -> None:
    """Report what is larger than an execution may be."""
    _check_workload(reading, playbook.workload)
    path: Path = ("executor", "spec", "policy", "limits")
    for name, value in playbook.executor.spec.policy.limits.items():
        most = LIMITS_MAX.get(name)
        if most is None:
            reading.unknown((*path, name), LIMITS_MAX, what="limit")
        elif not 1 <= value <= most:
            reading.report("E607", (*path, name), f"{name} is between 1 and {most}")
    for step_path, step in placed(reading, playbook):
        if step.loop is not None:
            _check_loop(reading, step.loop, (*step_path, "loop"))
        if step.reduce is not None:
            _check_reduce(reading, step.reduce, (*step_path, "reduce"))


def _check_workload(reading: Reading, workload: dict[str, Any]) -> None:
    size = len(msgspec.json.encode(workload))
    if size > WORKLOAD_BYTES_MAX:
        reading.report(
            "E608",
            ("workload",),
            f"workload has {size} bytes, and at most {WORKLOAD_BYTES_MAX} are accepted",
            of_key=True,
        )


def _check_loop(reading: Reading, loop: Loop, path: Path) -> None:
    if isinstance(loop.in_, list) and len(loop.in_) > ITEMS_MAX:
        reading.report("E606", (*path, "in"), f"a list in a loop has at most {ITEMS_MAX} items")
    fanout = loop.spec.fanout
    if fanout is None:
        return
    here = (*path, "spec", "fanout")
    if isinstance(fanout.partitions, int) and fanout.partitions > SHARDS_MAX:
        message = f"a fan-out has at most {SHARDS_MAX} shards"
        reading.report("E606", (*here, "partitions"), message)


def _check_reduce(reading: Reading, reduce: Reduce, path: Path) -> None:
    for name, least in (("fan_in", 2), ("max_in_flight", 1)):
        value = getattr(reduce.spec, name)
        if isinstance(value, int | float) and value < least:
            reading.report("E502", (*path, "spec", name), f"{name} is at least {least}")
