"""Shows how much each pool has to do: what autoscalers and people look at."""

from collections import Counter
from collections.abc import Iterable

from noetl_chassis import instruments, names
from noetl_messaging import topology
from noetl_messaging.ports import Queue


def show(queues: Iterable[Queue]) -> None:
    """Show the backlog of every lane of every pool that is served by JetStream."""
    backlog: Counter[tuple[str, str]] = Counter()
    for queue in queues:
        served = topology.find_pool(queue.consumer) if queue.stream == topology.COMMANDS else None
        if served is not None:
            # What tenants with a share of their own have to do counts as the pool's.
            backlog[served] += queue.pending + queue.unsettled
    for (pool, lane), count in backlog.items():
        labels = {names.POOL: pool, names.LANE: lane}
        instruments.show(names.COMMAND_BACKLOG, count, labels=labels)
