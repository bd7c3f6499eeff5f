"""W1 of two commits on two stacks that stand at once: one execution here, one there.

What else the machine does meets both alike. In turn, minute by minute, the same commit differs from
itself by more than a tenth.
"""

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.progress import track
from tests.bench import meter
from tests.bench.client import Client
from tests.bench.latency import ONE
from tests.bench.spread import share, spread
from tests.support.stack import running_stack

PAIRS = 500
_WARM = 150


def measure_pair(interpreters: Sequence[Path], root: Path) -> list[dict[str, Any]]:
    """Run W1 in turn on a stack of each interpreter; return the report of each."""
    with ExitStack() as opened:
        stacks = [
            opened.enter_context(
                running_stack(root / str(number) / "stack", "--workers", "1", python=python)
            )
            for number, python in enumerate(interpreters)
        ]
        clients = [Client(stack) for stack in stacks]
        for client in clients:
            client.register(ONE)
            for _ in range(_WARM):
                client.run("one")
        before = [meter.costs(stack) for stack in stacks]
        taken = _run_in_turn(clients)
        spent = [
            meter.costs(stack).since(first) for stack, first in zip(stacks, before, strict=True)
        ]
    return [
        {
            "p50_ms": spread([share(times, 0.5)], digits=2),
            "p95_ms": spread([share(times, 0.95)], digits=2),
            "each": cost.per(PAIRS),
        }
        for times, cost in zip(taken, spent, strict=True)
    ]


def _run_in_turn(clients: Sequence[Client]) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in clients]
    # First one, then the other begins: what follows the other's end gains by it.
    orders = itertools.cycle([range(len(clients)), range(len(clients) - 1, -1, -1)])
    for order, _ in zip(orders, track(range(PAIRS), "w1 in turn"), strict=False):
        for number in order:
            taken[number].append(clients[number].run("one") * 1000)
    return taken
