"""Shows how much each pool has to do: what autoscalers and people look at."""

from collections.abc import Iterable

from noetl_chassis import instruments, names
from noetl_messaging import topology
from noetl_messaging.ports import Queue


def show(queues: Iterable[Queue]) -> None:
    """Show the backlog of every lane of every pool that is served by JetStream."""
    for queue in queues:
        served = topology.find_pool(queue.consumer) if queue.stream == topology.COMMANDS else None
        if served is not None:
            pool, lane = served
            labels = {names.POOL: pool, names.LANE: lane}
            instruments.show(names.COMMAND_BACKLOG, queue.pending + queue.unsettled, labels=labels)
