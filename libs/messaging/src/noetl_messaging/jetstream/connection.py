"""One connection to NATS, with automatic reconnection and health checks."""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import msgspec
import nats.errors
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.errors import Error as JetStreamError

from noetl_contracts import codec
from noetl_messaging.jetstream.tls_address import (
    AddressRefused,
    NatsAddress,
    parse_nats_address,
)
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.worker_permissions import find_user

RECONNECT_WAIT_S = 0.25
PING_INTERVAL_S = 5
PINGS_UNANSWERED_MAX = 2
DRAIN_S = 5
INBOX = "_INBOX"

log = logging.getLogger("noetl.messaging")


class ConnectionTimeouts(Struct, frozen=True, kw_only=True):
    """How long to wait for the server."""

    connect_s: float = 30.0
    request_s: float = 5.0


class Connection:
    """A connection that never stops reconnecting; closed by `open_connection` alone."""

    def __init__(self, client: Client, *, where: str, waits: ConnectionTimeouts) -> None:
        self.client = client
        self.where = where
        self.waits = waits
        self.jetstream = client.jetstream(timeout=waits.request_s)
        self.answers = PublishAcks(client)
        self._first_by_stream: dict[str, tuple[int, int]] = {}

    @property
    def reconnect_count(self) -> int:
        """Return how often the connection was lost and found again.

        A consumer that sees another number than before asks the server anew.
        """
        return int(self.client.stats["reconnects"])

    def check_connection(self) -> str | None:
        """Say why the connection cannot be used, or None: a readiness check."""
        return None if self.client.is_connected else f"NATS at {self.where} is not connected"

    async def get_first_sequence(self, stream: str) -> int:
        """Return the sequence with which a stream began; asked again after every reconnection."""
        asked_at = self.reconnect_count
        cached_sequence = self._first_by_stream.get(stream)
        if cached_sequence is not None and cached_sequence[0] == asked_at:
            return cached_sequence[1]
        with translate_errors(f"asking about {stream}"):
            info = await self.jetstream.stream_info(stream)
        first = info.config.first_seq or 0
        self._first_by_stream[stream] = (asked_at, first)
        return first

    def require_connected(self) -> None:
        """Raise `MessagingUnavailable` unless connected: nothing may wait in a buffer meanwhile."""
        if reason := self.check_connection():
            raise MessagingUnavailable(reason)


@asynccontextmanager
async def open_connection(
    url: str, *, name: str, waits: ConnectionTimeouts | None = None, hears_itself: bool = True
) -> AsyncIterator[Connection]:
    """Connect within `waits.connect_s`, drain and close at the end.

    Without `hears_itself`, it does not receive the hints that it sent; streams are not affected.
    """
    timeouts = waits or ConnectionTimeouts()
    client = Client()
    address = parse_nats_address(url)
    server_address = address.url.rpartition("@")[2].removeprefix("nats://")
    connection = Connection(client, where=server_address, waits=timeouts)
    await _connect_client(
        client,
        address,
        name=name,
        server_address=server_address,
        connect_s=timeouts.connect_s,
        hears_itself=hears_itself,
    )
    try:
        _check_server_version(client, server_address)
        yield connection
    finally:
        await _close_client(client, server_address)


def build_inbox_prefix(url: str) -> str:
    """Name the subject below which the user of an address receives answers.

    Nobody but that user may listen there (`deploy/nats/permissions.conf`): under the inbox that
    clients have by default, everyone who may listen would receive the answers and deliveries of
    all.
    """
    user = find_user(url)
    return f"{INBOX}_{user}" if user else INBOX


@contextmanager
def translate_errors(operation: str) -> Iterator[None]:
    """Raise every error of the driver as `MessagingUnavailable`; `operation` says what failed."""
    try:
        yield
    except (nats.errors.Error, JetStreamError, TimeoutError, OSError) as failure:
        raise MessagingUnavailable(f"{operation}: {failure or type(failure).__name__}") from failure


async def _connect_client(
    client: Client,
    address: NatsAddress,
    *,
    name: str,
    server_address: str,
    connect_s: float,
    hears_itself: bool,
) -> None:
    tls = address.open_context()

    async def note_error(failure: Exception) -> None:
        last_failures.append(failure)
        if "authorization" in str(failure).lower():
            authorization_refused.set()
        log.warning("NATS at %s: %s", server_address, failure or type(failure).__name__)

    async def note_disconnected() -> None:
        if not (client.is_draining or client.is_closed):
            log.warning("NATS at %s: connection lost", server_address)
        if tls is not None:
            try:
                address.load_files(tls)
            except AddressRefused as failure:
                log.warning("NATS at %s: %s", server_address, failure)

    async def note_reconnected() -> None:
        last_failures.clear()
        log.info("NATS at %s: connected again", server_address)

    last_failures: deque[Exception] = deque(maxlen=1)
    authorization_refused = asyncio.Event()
    connecting = client.connect(
        servers=[address.url],
        tls=tls,
        name=name,
        error_cb=note_error,
        disconnected_cb=note_disconnected,
        reconnected_cb=note_reconnected,
        max_reconnect_attempts=-1,
        reconnect_time_wait=RECONNECT_WAIT_S,  # type: ignore[arg-type]  # asyncio.sleep takes it
        ping_interval=PING_INTERVAL_S,
        max_outstanding_pings=PINGS_UNANSWERED_MAX,
        drain_timeout=DRAIN_S,
        no_echo=not hears_itself,
        inbox_prefix=build_inbox_prefix(address.url),
    )
    failure = await _await_connection(connecting, authorization_refused, connect_s=connect_s)
    if failure is not None:
        reason = last_failures[-1] if last_failures else failure
        await client.close()
        raise MessagingUnavailable(
            f"NATS at {server_address} cannot be used: {reason or type(reason).__name__}. "
            "Check that the server runs, and the address and password in NATS_URL."
        ) from failure


def _check_server_version(client: Client, server_address: str) -> None:
    version = client.connected_server_version
    try:
        numbers = (version.major, version.minor)
    except ValueError:  # a build of one's own, which names no version
        return
    if numbers < topology.SERVER_MIN:
        server_version, oldest_version = (
            ".".join(map(str, item)) for item in (numbers, topology.SERVER_MIN)
        )
        raise MessagingUnavailable(
            f"NATS at {server_address} is version {server_version}: {oldest_version} or newer is "
            "needed, older ones lose streams when they are killed"
        )


async def _await_connection(
    connecting: Coroutine[Any, Any, None], refused: asyncio.Event, *, connect_s: float
) -> Exception | None:
    """Wait until connected; a refusal ends the wait, while a silent server may still come up."""
    attempt = asyncio.ensure_future(connecting)
    refusal = asyncio.ensure_future(refused.wait())
    try:
        await asyncio.wait(
            {attempt, refusal}, timeout=connect_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not attempt.done():
            return TimeoutError(f"no answer within {connect_s:g} s")
        await attempt
    except (nats.errors.Error, OSError) as failure:
        return failure
    finally:
        attempt.cancel()
        refusal.cancel()
    return None


async def _close_client(client: Client, server_address: str) -> None:
    if client.is_closed:
        return
    try:
        async with asyncio.timeout(DRAIN_S + 1):
            if client.is_connected:
                await client.drain()
            else:
                await client.close()
    except (nats.errors.Error, TimeoutError, OSError) as failure:
        log.warning("NATS at %s: closed without draining: %s", server_address, failure)
        await client.close()


AckReceiver = Callable[["PublishAck"], None]
_STATUS = "Status"


class PublishRefusal(Struct, frozen=True, kw_only=True):
    """Why a stream did not take a message."""

    description: str = ""
    err_code: int = 0


class PublishAck(Struct, frozen=True, kw_only=True):
    """A stream's answer; without an error the message is stored."""

    error: PublishRefusal | None = None

    @property
    def is_stored(self) -> bool:
        """Tell whether the message is in the stream."""
        return self.error is None


class PublishAcks:
    """Hears the answers of one connection under one inbox; a late one is heard by nobody."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._receiver_by_token: dict[str, AckReceiver] = {}
        self._inbox = ""
        self._count = 0

    async def expect_ack(self, receive_ack: AckReceiver) -> str:
        """Return the subject to be answered under; `receive_ack` is called once at most."""
        if not self._inbox:
            inbox = self._client.new_inbox()
            await self._client.subscribe(f"{inbox}.*", cb=self._take_ack)
            self._inbox = inbox
        self._count += 1
        token = str(self._count)
        self._receiver_by_token[token] = receive_ack
        return f"{self._inbox}.{token}"

    def forget_ack(self, subject: str) -> None:
        """Expect an answer no longer."""
        self._receiver_by_token.pop(subject.rpartition(".")[2], None)

    async def _take_ack(self, message: Msg) -> None:
        receive_ack = self._receiver_by_token.pop(message.subject.rpartition(".")[2], None)
        if receive_ack is not None:
            receive_ack(_parse_ack(message))


def _parse_ack(message: Msg) -> PublishAck:
    if message.headers and _STATUS in message.headers:
        # Nobody listens to the subject: there is no such stream.
        return PublishAck(
            error=PublishRefusal(description=f"no stream takes it ({message.headers[_STATUS]})")
        )
    try:
        return codec.decode_as(message.data, PublishAck)
    except msgspec.DecodeError as failure:
        return PublishAck(error=PublishRefusal(description=f"the answer cannot be read: {failure}"))
