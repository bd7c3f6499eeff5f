"""Free TCP ports on loopback, the same ones again when they are still free."""

import secrets
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from noetl_cli.failures import StackError

LOOPBACK = "127.0.0.1"
# Below the range from which the kernel serves outgoing connections: a client that retries a
# stopped server on loopback could otherwise be handed that very port, and keep it.
PORT_MIN = 15_000
PORT_MAX = 32_000
TRIES_MAX = 2_000
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_free(port: int) -> bool:
    """Tell whether a server could listen there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


def choose(names: Iterable[str], *, before: Mapping[str, int]) -> dict[str, int]:
    """Give every name a port of its own: its former one when that is free."""
    chosen: dict[str, int] = {}
    for name in names:
        former = before.get(name)
        taken = set(chosen.values())
        if former is not None and former not in taken and is_free(former):
            chosen[name] = former
        else:
            chosen[name] = _fresh(taken | set(before.values()))
    return chosen


def _fresh(taken: set[int]) -> int:
    lowest = min(PORT_MAX, _ephemeral_low())
    for _ in range(TRIES_MAX):
        port = PORT_MIN + secrets.randbelow(max(1, lowest - PORT_MIN))
        if port not in taken and is_free(port):
            return port
    raise StackError(
        f"No free port between {PORT_MIN} and {lowest} on {LOOPBACK}.",
        way_out="See what is listening with: ss -ltnp",
    )


def _ephemeral_low() -> int:
    try:
        return int(EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return PORT_MAX
