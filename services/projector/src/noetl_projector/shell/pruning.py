"""Snapshots of the past, kept as long as somebody may look back at it."""

from noetl_storage.audit_ports import Past

# So many executions are forgotten in one statement, in so many statements a turn.
EXECUTIONS_MAX = 200
ROUNDS_MAX = 50


async def prune_past(past: Past, *, ended_s: float) -> int:
    """Forget the past of executions that ended so long ago; return how many snapshots."""
    total = 0
    for _ in range(ROUNDS_MAX):
        gone = await past.prune(ended_s=ended_s, executions_max=EXECUTIONS_MAX)
        total += gone
        if not gone:
            break
    return total
