"""Counts the calls of tools, and their time."""

from functools import cache

from noetl_chassis import instruments, names
from noetl_chassis.instruments import Sum
from noetl_worker.tools.call import Outcome


def count_call(kind: str, outcome: Outcome, duration_s: float) -> None:
    """Count a call, and its time."""
    calls, seconds = _sums(kind, "ok" if outcome.error is None else outcome.error.kind)
    calls.add()
    seconds.add(duration_s)


@cache
def _sums(kind: str, outcome: str) -> tuple[Sum, Sum]:
    """Give where calls of a tool that ended so are counted, and their time."""
    by_outcome = {names.TOOL: kind, names.OUTCOME: outcome}
    return (
        instruments.counter(names.TOOL_CALLS, labels=by_outcome),
        instruments.counter(names.TOOL_SECONDS, labels={names.TOOL: kind}),
    )
