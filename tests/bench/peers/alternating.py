"""W1 of ours and of another engine in turn: what a machine does in a second changes within minutes.

Everything stands all the time, ours and the server of theirs; their program starts anew for each
turn and runs one execution before it counts, as ours has.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.client import Client
from tests.bench.latency import ONE, SINGLES
from tests.bench.peers import running
from tests.bench.peers.engine import Engine
from tests.bench.peers.installing import PeerError, installed
from tests.bench.spread import share, spread
from tests.support.servers import postgres_server
from tests.support.stack import running_stack

# Those that answer within milliseconds; the others look for work a few times a second.
NAMES = ("dbos", "procrastinate")
TURNS = 21


def measure(root: Path, names: Sequence[str]) -> dict[str, Any]:
    """Return, of each engine, both sides' medians and how many times as long ours takes."""
    folder = root / "alternating"
    folder.mkdir()
    found: dict[str, Any] = {}
    with (
        running_stack(folder / "stack") as stack,
        postgres_server(folder, is_durable=True) as server,
    ):
        client = Client(stack)
        client.register(ONE)
        client.run("one")
        for name in [item for item in NAMES if item in names]:
            try:
                python, _version = installed(name)
                with running.engine(name, python, server, folder) as theirs:
                    found[name] = _in_turn(client, theirs)
            except PeerError as failure:
                found[name] = {"reason": str(failure)}
            running.console.print("in turn with", name, found[name])
    return found


def _in_turn(client: Client, engine: Engine) -> dict[str, Any]:
    theirs: list[float] = []
    ours: list[float] = []

    def let_theirs() -> None:
        told = engine.drive("w1", units=SINGLES, rounds=1)["singles"]
        theirs.append(share(told, 0.5) * 1000)

    def let_ours() -> None:
        ours.append(share([client.run("one") for _ in range(SINGLES)], 0.5) * 1000)

    for turn in range(TURNS):
        for let in (let_theirs, let_ours) if turn % 2 == 0 else (let_ours, let_theirs):
            let()
    return {
        "turns": TURNS,
        "ours_ms": spread(ours),
        "theirs_ms": spread(theirs),
        "times": spread([item / other for item, other in zip(ours, theirs, strict=True)], digits=2),
    }
