"""A task reaches no socket of another program of the machine, with the network or without."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.support.calls import call_of
from tests.support.working import Bench

from noetl_worker.tools.calls.call import Outcome

CANARY = "canary-of-the-store"
BOTH = pytest.mark.parametrize("reach", ["apart", "network"])


async def run(worker: Bench, code: str, *, network: bool) -> Outcome:
    return await worker.tools.run(call_of("python", {"code": code, "network": network}))


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Path]:
    """A socket with a path, as the payload store, the broker and a container engine have."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CANARY.encode())
        writer.close()

    path = tmp_path / "s.sock"
    server = await asyncio.start_unix_server(answer, path)
    async with server:
        yield path


@pytest.fixture
def mailbox(tmp_path: Path) -> Iterator[tuple[Path, socket.socket]]:
    """A datagram socket, as a system's log has."""
    path = tmp_path / "d.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as box:
        box.bind(str(path))
        yield path, box


CONNECT = "s = socket.socket(socket.AF_UNIX{kind})\ns.connect({path!r})\nreturn s.recv(99).decode()"
BY_NUMBER = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(41, 1, 1, 0)
assert fd >= 0, 'refused'
address = struct.pack('H', 1) + {path!r}.encode() + bytes(1)
assert not libc.connect(fd, address, len(address)), 'refused'
return os.read(fd, 99).decode()
"""
RING = """
import ctypes
assert ctypes.CDLL(None).syscall(425, 8, ctypes.create_string_buffer(120)) >= 0, 'refused'
return 'a ring whose requests no filter sees'
"""


@BOTH
@pytest.mark.parametrize(
    "code",
    [
        CONNECT.replace("{kind}", ""),
        CONNECT.replace("{kind}", ", socket.SOCK_SEQPACKET"),
        BY_NUMBER,
        RING,
    ],
    ids=["stream", "seqpacket", "by-number", "io_uring"],
)
async def test_a_socket_with_a_path_is_out_of_reach(
    worker: Bench, served: Path, code: str, reach: str
) -> None:
    found = await run(
        worker,
        f"import socket\n{code.replace('{path!r}', repr(str(served)))}",
        network=reach == "network",
    )
    assert found.error is not None, found.data
    assert CANARY not in str(found)


@BOTH
async def test_a_pair_of_sockets_sends_to_nobody_else(
    worker: Bench, mailbox: tuple[Path, socket.socket], reach: str
) -> None:
    path, box = mailbox
    code = (
        "import socket\none, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        f"one.sendto(b'forged', {str(path)!r})"
    )
    found = await run(worker, code, network=reach == "network")
    assert found.error is not None
    with pytest.raises(BlockingIOError):
        box.recv(99)


@BOTH
async def test_an_abstract_socket_is_out_of_reach(worker: Bench, reach: str) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0noetl-canary")
        server.listen()
        code = "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0noetl-canary')"
        assert (await run(worker, code, network=reach == "network")).error is not None


@BOTH
@pytest.mark.parametrize(
    "made",
    [
        "socket.AF_VSOCK, socket.SOCK_STREAM",
        "socket.AF_PACKET, socket.SOCK_RAW",
        "socket.AF_ALG, socket.SOCK_SEQPACKET",
        "socket.AF_NETLINK, socket.SOCK_RAW, 9",
        "socket.AF_NETLINK, socket.SOCK_RAW, 15",
        "socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP",
    ],
)
async def test_sockets_of_other_kinds_are_refused(worker: Bench, made: str, reach: str) -> None:
    found = await run(worker, f"import socket\nsocket.socket({made})", network=reach == "network")
    assert found.error is not None


@pytest.mark.parametrize("kind", ["SOCK_STREAM", "SOCK_DGRAM"])
async def test_without_the_network_nothing_is_sent(worker: Bench, kind: str) -> None:
    with socket.socket(socket.AF_INET, getattr(socket, kind)) as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
        code = (
            f"import socket\ns = socket.socket(socket.AF_INET, socket.{kind})\n"
            f"s.connect(('127.0.0.1', {port}))\ns.send(b'x')"
        )
        if kind == "SOCK_STREAM":
            server.listen()
        found = await run(worker, code, network=False)
    assert found.error is not None
    assert "spec.network" in found.error.message


async def test_the_network_is_there_when_it_is_granted(worker: Bench) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        code = (
            f"import socket\nreturn socket.create_connection(('localhost', {port})).getpeername()"
        )
        found = await run(worker, code, network=True)
    assert found.data == ["127.0.0.1", port], found.error
