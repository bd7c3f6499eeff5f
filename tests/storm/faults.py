"""What may befall a stack: each fault hurts it once, waits until it is over, and names itself."""

import random
import signal
import time
from collections.abc import Callable

from tests.chaos.conftest import LEASE_S
from tests.support import spark
from tests.support.servers import wait_past
from tests.support.stack import Stack

Fault = Callable[[Stack, random.Random], str]
SERVICES = ("worker-1", "worker-2", "planner-1", "outbox-1", "projector-1", "reaper-1")


def _kill(stack: Stack, chance: random.Random) -> str:
    name = chance.choice(SERVICES)
    stack.kill(name)
    return f"SIGKILL of a {name.rpartition('-')[0]}"


def _pause(stack: Stack, chance: random.Random) -> str:
    name = chance.choice(SERVICES)
    stack.pause(name)
    try:
        wait_past(time.monotonic(), chance.uniform(0.5, 2) * LEASE_S)
    finally:
        stack.resume(name)
    return f"SIGSTOP of a {name.rpartition('-')[0]}, for up to two leases"


def _restart(stack: Stack, _: random.Random) -> str:
    with stack.without("postgres", how=signal.SIGINT):
        pass
    return "restart of PostgreSQL"


def _crash(stack: Stack, _: random.Random) -> str:
    with stack.without("nats"):
        wait_past(time.monotonic(), LEASE_S)
    return "NATS away for a lease"


def _wipe(stack: Stack, _: random.Random) -> str:
    stack.wipe_nats()
    return "JetStream's store wiped"


def _lose_store(stack: Stack, chance: random.Random) -> str:
    with stack.without("s3"):
        # Often longer than anything is asked that is no outage.
        wait_past(time.monotonic(), chance.uniform(0.5, 4 * LEASE_S))
    return "payload store away, for up to four leases"


def _kill_driver(stack: Stack, chance: random.Random) -> str:
    pid = stack.pid(chance.choice(["worker-1", "worker-2"]))
    drivers = [] if pid is None else spark.drivers(pid)
    spark.kill(drivers)
    return "SIGKILL of a worker's Spark" if drivers else "no Spark to kill"


FAULTS: tuple[Fault, ...] = (
    *(_kill, _kill, _kill, _pause, _restart, _crash, _wipe, _lose_store, _kill_driver),
)
