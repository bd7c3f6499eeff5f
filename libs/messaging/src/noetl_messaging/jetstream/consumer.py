"""Pulls from one durable consumer."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from noetl_contracts import codec
from noetl_messaging.errors import MessagingUnavailable
from noetl_messaging.jetstream.connection import Connection, translated
from noetl_messaging.jetstream.publisher import MESSAGE_ID_HEADER
from noetl_messaging.ports import Delivery

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription

EXTEND_TIMEOUT_S = 2.0
# How long beyond its own deadline the server may take to say that there is nothing.
ANSWER_GRACE_S = 1.0
# A lost connection is noticed this soon, since the server then forgets the request.
LOOK_S = 1.0
_NOTHING = frozenset({"404", "408"})
_IDLE = "100"
_NS = 1_000_000_000
_PLAIN_TOKENS = 9


class PullRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What JetStream is asked: what is there, else whatever comes first until `expires` ns."""

    batch: int
    no_wait: bool
    expires: int = 0


class JetStreamDelivery:
    """One handing-over of a message."""

    __slots__ = ("_connection", "_message", "_reconnects", "_tokens")

    def __init__(self, message: Msg, connection: Connection) -> None:
        self._message = message
        self._connection = connection
        self._reconnects = connection.reconnects
        # $JS.ACK[.<domain>.<account>].<stream>.<consumer>.<delivered>.<stream seq>.…
        tokens = message.reply.split(".")
        self._tokens = tokens[2:] if len(tokens) == _PLAIN_TOKENS else tokens[4:]

    @property
    def subject(self) -> str:
        """Return the subject under which the message was published."""
        return self._message.subject

    @property
    def data(self) -> bytes:
        """Return the message's bytes."""
        return self._message.data

    @property
    def message_id(self) -> str:
        """Return the publisher's own identity of the message; empty when it gave none."""
        return (self._message.headers or {}).get(MESSAGE_ID_HEADER, "")

    @property
    def delivered(self) -> int:
        """Return how often this message has been handed over, this time included."""
        return int(self._tokens[2])

    @property
    def stream_sequence(self) -> int:
        """Return the message's place in its stream."""
        return int(self._tokens[3])

    async def ack(self) -> None:
        """Settle: done."""
        await self._settle(b"+ACK")

    async def nak(self, delay_s: float = 0.0) -> None:
        """Settle: hand it over again, not before the delay has passed."""
        tail = b" " + codec.encode({"delay": int(delay_s * _NS)}) if delay_s > 0 else b""
        await self._settle(b"-NAK" + tail)

    async def term(self) -> None:
        """Settle: never hand it over again."""
        await self._settle(b"+TERM")

    async def extend(self) -> bool:
        """Ask for another ack wait; True only when the server confirmed it.

        The server confirms whatever it is asked, also for a message that it never had: one that
        came from a stream which has since been made again is therefore found out by its sequence.
        """
        if self._connection.check() is not None:
            return False
        try:
            async with asyncio.timeout(EXTEND_TIMEOUT_S):
                if not await self._is_of_this_stream():
                    return False
                await self._connection.client.request(
                    self._message.reply, b"+WPI", timeout=EXTEND_TIMEOUT_S
                )
        except (NatsError, MessagingUnavailable, TimeoutError, OSError):
            return False
        return True

    async def _is_of_this_stream(self) -> bool:
        if self._connection.reconnects == self._reconnects:
            return True
        first = await self._connection.first_sequence(self._tokens[0])
        return self.stream_sequence >= first

    async def _settle(self, word: bytes) -> None:
        with translated(f"settling a message of {self._message.subject}"):
            await self._connection.client.publish(self._message.reply, word)


class JetStreamConsumer:
    """One durable consumer; one fetch at a time."""

    def __init__(self, connection: Connection, *, stream: str, name: str) -> None:
        self._connection = connection
        self._stream = stream
        self._name = name
        self._ask_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
        self._turn = asyncio.Lock()
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._heard: deque[Msg] = deque()
        self._woken = asyncio.Event()
        self._requests = 0

    async def fetch(self, *, messages_max: int, wait_s: float) -> list[Delivery]:
        """Return what is there, waiting up to `wait_s` for the first."""
        async with self._turn:
            self._connection.require()
            is_complete = False
            try:
                with translated(f"fetching from {self._stream}/{self._name}"):
                    messages = await self._pull(messages_max=messages_max, wait_s=wait_s)
                is_complete = True
            finally:
                # A request that was left open would go on collecting messages for nobody.
                if not is_complete:
                    await self._forget()
        return [JetStreamDelivery(message, self._connection) for message in messages]

    async def pending(self) -> tuple[int, int]:
        """Return how many messages are undelivered and how many are delivered and unsettled."""
        with translated(f"asking about {self._stream}/{self._name}"):
            info = await self._connection.jetstream.consumer_info(self._stream, self._name)
        return info.num_pending or 0, info.num_ack_pending or 0

    async def close(self) -> None:
        """Stop listening for messages."""
        async with self._turn:
            await self._forget()

    async def _pull(self, *, messages_max: int, wait_s: float) -> list[Msg]:
        token = await self._ask(messages_max=messages_max, wait_s=wait_s)
        found: list[Msg] = []
        reconnects = self._connection.reconnects
        clock = asyncio.get_running_loop().time
        deadline = clock() + wait_s + ANSWER_GRACE_S
        while len(found) < messages_max:
            message = await self._next(min(LOOK_S, deadline - clock()))
            if message is None:
                is_lost = self._connection.reconnects != reconnects or clock() >= deadline
                if not (is_lost or self._connection.check()):
                    continue
                if found:
                    await self._forget()
                    break
                raise MessagingUnavailable(f"{self._stream}/{self._name} did not answer")
            status = _status(message)
            if status is None:
                found.append(message)
            elif message.subject == token and self._is_end(status, message, found):
                break
        return found

    async def _ask(self, *, messages_max: int, wait_s: float) -> str:
        if self._subscription is None:
            await self._listen()
        self._requests += 1
        token = f"{self._inbox}.{self._requests}"
        request = PullRequest(batch=messages_max, no_wait=True, expires=int(wait_s * _NS))
        await self._connection.client.publish(self._ask_subject, codec.encode(request), reply=token)
        return token

    async def _listen(self) -> None:
        """Keep what is handed over under an inbox of its own, in order."""
        heard, woken = deque[Msg](), self._woken

        async def hear(message: Msg) -> None:
            heard.append(message)
            woken.set()

        self._heard = heard
        self._inbox = self._connection.client.new_inbox()
        self._subscription = await self._connection.client.subscribe(f"{self._inbox}.*", cb=hear)

    async def _next(self, wait_s: float) -> Msg | None:
        if self._subscription is None or wait_s <= 0:
            return None
        if not self._heard:
            self._woken.clear()
            try:
                async with asyncio.timeout(wait_s):
                    await self._woken.wait()
            except TimeoutError:
                return None
        return self._heard.popleft() if self._heard else None

    def _is_end(self, status: str, message: Msg, found: list[Any]) -> bool:
        """Tell whether a status ends the request; raises when it is a refusal."""
        if status == _IDLE:
            return False
        if status in _NOTHING or found:
            return True
        said = (message.headers or {}).get("Description", "").strip().partition("\n")[0]
        reason = said if said and not said.startswith("Nats-") else "no such consumer"
        raise MessagingUnavailable(f"{self._stream}/{self._name}: {reason} ({status})")

    async def _forget(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is None or self._connection.client.is_closed:
            return
        with translated(f"leaving {self._stream}/{self._name}"):
            await subscription.unsubscribe()


def _status(message: Msg) -> str | None:
    return message.headers.get("Status") if message.headers else None
