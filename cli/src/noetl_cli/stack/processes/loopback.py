"""Loopback: free TCP ports, the same ones again while they are free, and HTTP requests to them."""

import http.client
import secrets
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from noetl_cli.errors import StackError

LOOPBACK = "127.0.0.1"
# Below the range from which the kernel serves outgoing connections: a client that retries a
# stopped server on loopback could otherwise be handed that very port, and keep it.
PORT_MIN = 15_000
PORT_MAX = 32_000
TRIES_MAX = 2_000
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def is_port_free(port: int) -> bool:
    """Tell whether a server could listen there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen(1)
        except OSError:
            return False
    return True


class HeldPorts:
    """Ports that no other stack chooses while they are held, and that servers may listen on.

    A socket that is bound and never listens refuses all who bind without SO_REUSEADDR, as those do
    who look for a new port. Servers bind with it.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def hold_port(self, port: int) -> bool:
        """Hold a port, unless it is in use, or held by somebody else."""
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            holder.bind((LOOPBACK, port))
        except OSError:
            holder.close()
            return False
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sockets.append(holder)
        return True

    def close(self) -> None:
        """Let go of all of them."""
        while self._sockets:
            self._sockets.pop().close()


def choose_ports(
    names: Iterable[str], *, before: Mapping[str, int], held: HeldPorts | None = None
) -> dict[str, int]:
    """Give every name a port of its own: its former one if that is free; `held` holds new ones."""
    holder = held or HeldPorts()
    chosen: dict[str, int] = {}
    for name in names:
        former = before.get(name)
        used_ports = set(chosen.values())
        # Connections that ended a moment ago do not hinder a server, but they hinder a holder.
        if former is not None and former not in used_ports and is_port_free(former):
            chosen[name] = former
        else:
            chosen[name] = _find_free_port(used_ports | set(before.values()), holder)
    if held is None:
        holder.close()
    return chosen


def _find_free_port(used_ports: set[int], held: HeldPorts) -> int:
    lowest = min(PORT_MAX, _read_ephemeral_low())
    for _ in range(TRIES_MAX):
        port = PORT_MIN + secrets.randbelow(max(1, lowest - PORT_MIN))
        if port not in used_ports and held.hold_port(port):
            return port
    raise StackError(
        f"No free port between {PORT_MIN} and {lowest} on {LOOPBACK}.",
        way_out="See what is listening with: ss -ltnp",
    )


def _read_ephemeral_low() -> int:
    try:
        return int(EPHEMERAL_RANGE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return PORT_MAX


TIMEOUT_S = 5.0
BODY_BYTES_MAX = 1024 * 1024
OK = 200


class LoopbackResponse(Struct, frozen=True, kw_only=True):
    """What a server said."""

    status: int
    body: bytes


def send_request(
    url: str, *, method: str = "GET", body: bytes = b"", headers: Mapping[str, str] | None = None
) -> LoopbackResponse | None:
    """Send one request; nothing when nobody answers in time."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=TIMEOUT_S)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(method, path or "/", body=body or None, headers=dict(headers or {}))
        response = connection.getresponse()
        return LoopbackResponse(status=response.status, body=response.read(BODY_BYTES_MAX))
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def get_status(url: str) -> int | None:
    """Get an address and return its status, or nothing when nobody answers."""
    answer = send_request(url)
    return None if answer is None else answer.status
