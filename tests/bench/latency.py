"""How long small things take and what they cost: W1, W2, many executions at once."""

import time
from typing import Any

from rich.progress import track
from tests.bench import meter
from tests.bench.client import HEAD, Client
from tests.bench.spread import share, spread
from tests.support.stack import Stack

SINGLES = 50
CHAIN_STEPS = 100
SMALL_EXECUTIONS = 1_000
ROUNDS = 5
ONE = (
    HEAD
    + "metadata: {name: one}\nworkflow: [{step: one, tool: {kind: python, code: 'result = 1'}}]\n"
)
SMALL = HEAD + "metadata: {name: small}\nworkflow: [{step: one, tool: {kind: noop}}]\n"


def chain(length: int) -> str:
    """Write a playbook of so many no-op steps in a row."""
    steps = [
        f"  - {{step: s{n}, tool: {{kind: noop}}, next: {{arcs: [{{step: s{n + 1}}}]}}}}\n"
        for n in range(length - 1)
    ]
    last = f"  - {{step: s{length - 1}, tool: {{kind: noop}}}}\n"
    return f"{HEAD}metadata: {{name: chain}}\nworkflow:\n{''.join(steps)}{last}"


def single(stack: Stack) -> dict[str, Any]:
    """W1: one execution with one Python step, one after another, from submission to the end."""
    client = Client(stack)
    client.register(ONE)
    client.run("one")
    before = meter.costs(stack)
    series = [[client.run("one") * 1000 for _ in range(SINGLES)] for _ in range(ROUNDS)]
    spent = meter.costs(stack).since(before)
    return {
        "units": SINGLES,
        "rounds": ROUNDS,
        "p50_ms": spread([share(one, 0.5) for one in series]),
        "p95_ms": spread([share(one, 0.95) for one in series]),
        "each": spent.per(SINGLES * ROUNDS),
    }


def steps(stack: Stack) -> dict[str, Any]:
    """W2: one execution of many steps in a row."""
    client = Client(stack)
    client.register(chain(CHAIN_STEPS))
    client.run("chain")
    return meter.rounds(stack, lambda: client.run("chain"), units=CHAIN_STEPS, times=ROUNDS)


def many(stack: Stack) -> dict[str, Any]:
    """Submit many one after another, all of them running at once, and wait for the last."""
    client = Client(stack)
    client.register(SMALL)
    client.run("small")

    def crowd() -> float:
        started = time.perf_counter()
        asked = [client.submit("small") for _ in track(range(SMALL_EXECUTIONS), "small")]
        for execution_id in asked:
            client.wait(execution_id)
        return time.perf_counter() - started

    return meter.rounds(stack, crowd, units=SMALL_EXECUTIONS, times=1)
