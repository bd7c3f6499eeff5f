"""Pulls from one durable consumer."""

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import structlog
from msgspec import Struct
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from noetl_contracts import codec
from noetl_messaging.jetstream.connection import Connection, translate_errors
from noetl_messaging.jetstream.publisher import MESSAGE_ID_HEADER
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.ports import TRACE_HEADER, Delivery

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

log = structlog.get_logger(__name__)


class PullRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A pull request: the messages that are there, else the first that come in `expires` ns."""

    batch: int
    no_wait: bool
    expires: int = 0


class JetStreamDelivery:
    """One handing-over of a message."""

    __slots__ = ("_asked_at", "_connection", "_message", "_reconnects", "_tokens")

    def __init__(self, message: Msg, connection: Connection, *, asked_at: float) -> None:
        self._message = message
        self._connection = connection
        self._asked_at = asked_at
        self._reconnects = connection.reconnect_count
        self._tokens = _parse_reply_tokens(message)

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
    def traceparent(self) -> str | None:
        """Return the span that published the message, as its headers name it."""
        return (self._message.headers or {}).get(TRACE_HEADER)

    @property
    def delivery_count(self) -> int:
        """Return how often this message has been handed over, this time included."""
        return int(self._tokens[2])

    @property
    def stream_sequence(self) -> int:
        """Return the message's place in its stream."""
        return int(self._tokens[3])

    @property
    def age_s(self) -> float:
        """Return for how many seconds it has been handed over, at most.

        The server does not say when it did; it was after it had been asked.
        """
        return _read_loop_time() - self._asked_at

    async def ack(self) -> None:
        """Settle: done."""
        await self._send_settlement(b"+ACK")

    async def nak(self, delay_s: float = 0.0) -> None:
        """Settle: hand it over again, not before the delay has passed."""
        tail = b" " + codec.encode_json({"delay": int(delay_s * _NS)}) if delay_s > 0 else b""
        await self._send_settlement(b"-NAK" + tail)

    async def term(self) -> None:
        """Settle: never hand it over again."""
        await self._send_settlement(b"+TERM")

    async def extend_ack_wait(self) -> bool:
        """Ask for another ack wait; True only when the server confirmed it.

        The server confirms every such request, also for a message that it does not have. A message
        of a stream that has since been created again is therefore detected by its sequence.
        """
        if self._connection.check_connection() is not None:
            return False
        try:
            async with asyncio.timeout(EXTEND_TIMEOUT_S):
                if not await self._is_of_current_stream():
                    return False
                await self._connection.client.request(
                    self._message.reply, b"+WPI", timeout=EXTEND_TIMEOUT_S
                )
        except (NatsError, MessagingUnavailable, TimeoutError, OSError):
            return False
        return True

    async def _is_of_current_stream(self) -> bool:
        if self._connection.reconnect_count == self._reconnects:
            return True
        first = await self._connection.get_first_sequence(self._tokens[0])
        return self.stream_sequence >= first

    async def _send_settlement(self, word: bytes) -> None:
        with translate_errors(f"settling a message of {self._message.subject}"):
            await self._connection.client.publish(self._message.reply, word)


class _Request(Struct, kw_only=True):
    """What the server was asked for: it answers under `token` until `left` is 0 or it expires.

    One that stands is answered with the first message; another, with all that there is.
    """

    token: str
    messages_left: int
    expires_at: float
    is_standing: bool


class JetStreamConsumer:
    """One durable consumer; one fetch at a time.

    Each fetch sends a request for the messages that are there, or for the first that come, and the
    server answers when there are no more. Where messages come singly, the request costs more than
    the message: with `standing`, a request for that many messages stays open from fetch to fetch,
    until the deadline of the fetch that sent it. Messages that it brings between two fetches wait
    here for the next fetch, so the consumer must be closed; with 1, no message arrives between
    fetches.

    A fetcher that shares the consumer with others asks for no more than half of what was left
    behind its latest message, so that a few messages do not all go to the first fetcher (guided
    self-scheduling, Polychronopoulos and Kuck 1987, for two).
    """

    def __init__(
        self,
        connection: Connection,
        *,
        stream: str,
        name: str,
        standing: int = 0,
        is_shared: bool = False,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._name = name
        self._standing_messages = standing
        self._is_shared = is_shared
        self._ask_subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{name}"
        self._turn = asyncio.Lock()
        self._inbox = ""
        self._subscription: Subscription | None = None
        self._reconnects = 0
        self._received_messages: deque[Msg] = deque()
        self._woken = asyncio.Event()
        self._is_called = False
        self._requests = 0
        self._request: _Request | None = None
        # What waits to be fetched was asked for then: nothing is asked before it is taken.
        self._asked_at = 0.0
        # How many more there were when the latest message was handed over.
        self._behind = 1

    async def fetch_batch(self, *, messages_max: int, wait_s: float) -> list[Delivery]:
        """Return what is there, waiting up to `wait_s` for the first."""
        async with self._turn:
            self._connection.require_connected()
            is_complete = False
            try:
                with translate_errors(f"fetching from {self._stream}/{self._name}"):
                    messages = await self._pull_messages(messages_max=messages_max, wait_s=wait_s)
                is_complete = True
            finally:
                # A request that was left open would go on collecting messages for nobody.
                if not is_complete:
                    await self._unsubscribe_inbox()
            asked_at, self._is_called = self._asked_at, False
        return [
            JetStreamDelivery(message, self._connection, asked_at=asked_at) for message in messages
        ]

    def wake_fetch(self) -> None:
        """Have the fetch that waits, else the next one, return with what there is.

        A request that does not stay open from fetch to fetch is waited for: what it brings would
        be nobody's.
        """
        self._is_called = True
        self._woken.set()

    async def count_pending(self) -> tuple[int, int]:
        """Return how many messages are undelivered and how many are delivered and unsettled."""
        with translate_errors(f"asking about {self._stream}/{self._name}"):
            info = await self._connection.jetstream.consumer_info(self._stream, self._name)
        return info.num_pending or 0, info.num_ack_pending or 0

    async def close(self) -> None:
        """Stop listening for messages, and give back what came and was not fetched.

        Without a server that comes again by itself, when its ack wait is over.
        """
        async with self._turn:
            try:
                await self._unsubscribe_inbox()
            except MessagingUnavailable as problem:
                log.info("messages not released", consumer=self._name, reason=str(problem))

    async def _pull_messages(self, *, messages_max: int, wait_s: float) -> list[Msg]:
        if self._connection.reconnect_count != self._reconnects:
            # What was asked before is forgotten, and what came may be of a stream that is gone.
            await self._unsubscribe_inbox()
        until = _read_loop_time() + wait_s
        messages = self._take_received(messages_max)
        if not messages and self._request is not None:
            messages = await self._collect_messages(messages_max, until=until)
        if not messages and self._request is None:
            # Nothing is asked for, or what an earlier fetch asked for has ended meanwhile.
            await self._send_request(messages_max, wait_s=max(0.0, until - _read_loop_time()))
            messages = await self._collect_messages(messages_max, until=until)
        self._behind = _count_behind(messages[-1]) if messages else 0
        return messages

    async def _collect_messages(self, messages_max: int, *, until: float) -> list[Msg]:
        messages: list[Msg] = []
        while (request := self._request) is not None and not (request.is_standing and messages):
            deadline = request.expires_at + ANSWER_GRACE_S
            may_leave = request.is_standing and self._standing_messages > 1
            if not (may_leave and self._is_called):
                await self._wait_for_message(
                    min(LOOK_S, (until if may_leave else deadline) - _read_loop_time())
                )
            batch = self._take_received(messages_max - len(messages), has_some=bool(messages))
            messages += batch
            if batch or self._request is None:
                continue
            if self._is_request_lost(deadline):
                await self._unsubscribe_inbox()
                if not messages:
                    raise MessagingUnavailable(f"{self._stream}/{self._name} did not answer")
            elif may_leave and (self._is_called or _read_loop_time() >= until):
                break
        return messages

    def _is_request_lost(self, deadline: float) -> bool:
        """Tell whether the server has forgotten a request, or has not said that it ended."""
        is_another = self._connection.reconnect_count != self._reconnects
        return (
            is_another
            or _read_loop_time() >= deadline
            or self._connection.check_connection() is not None
        )

    async def _send_request(self, messages_max: int, *, wait_s: float) -> None:
        if self._subscription is None:
            await self._subscribe_inbox()
        is_standing = self._standing_messages > 0 and wait_s > 0 and not self._behind
        batch = min(
            messages_max,
            self._standing_messages if is_standing else self._compute_batch_size(messages_max),
        )
        self._requests += 1
        token = f"{self._inbox}.{self._requests}"
        self._asked_at = _read_loop_time()
        pull_request = PullRequest(batch=batch, no_wait=not is_standing, expires=int(wait_s * _NS))
        await self._connection.client.publish(
            self._ask_subject, codec.encode_json(pull_request), reply=token
        )
        self._request = _Request(
            token=token,
            messages_left=batch,
            expires_at=_read_loop_time() + wait_s,
            is_standing=is_standing,
        )

    def _compute_batch_size(self, messages_max: int) -> int:
        """Return what to ask for of what is there; of an unknown number, all."""
        return -(-self._behind // 2) if self._is_shared and self._behind else messages_max

    async def _subscribe_inbox(self) -> None:
        """Keep what is handed over under an inbox of its own, in order."""
        received_messages, woken = deque[Msg](), self._woken

        async def keep_message(message: Msg) -> None:
            received_messages.append(message)
            woken.set()

        self._received_messages = received_messages
        self._reconnects = self._connection.reconnect_count
        self._inbox = self._connection.client.new_inbox()
        self._subscription = await self._connection.client.subscribe(
            f"{self._inbox}.*", cb=keep_message
        )

    async def _wait_for_message(self, wait_s: float) -> None:
        """Wait until something was heard that nobody has taken, but not longer than `wait_s`."""
        if self._received_messages or wait_s <= 0:
            return
        self._woken.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._woken.wait()
        except TimeoutError:
            return

    def _take_received(self, messages_max: int, *, has_some: bool = False) -> list[Msg]:
        """Take messages that came; a request ends with its last, or with the word that it did."""
        messages: list[Msg] = []
        while self._received_messages and len(messages) < messages_max:
            message = self._received_messages.popleft()
            status = _find_status(message)
            if status is None:
                messages.append(message)
                self._count_received()
            elif self._answers_request(message) and self._is_request_ended(
                status, message, is_refusal=not (messages or has_some)
            ):
                self._request = None
        return messages

    def _count_received(self) -> None:
        request = self._request
        if request is not None:
            request.messages_left -= 1
            self._request = request if request.messages_left else None

    def _answers_request(self, message: Msg) -> bool:
        return self._request is not None and message.subject == self._request.token

    def _is_request_ended(self, status: str, message: Msg, *, is_refusal: bool) -> bool:
        """Tell whether a status ends the request; raises when it is a refusal."""
        if status == _IDLE:
            return False
        if status in _NOTHING or not is_refusal:
            return True
        part = (message.headers or {}).get("Description", "").strip().partition("\n")[0]
        reason = part if part and not part.startswith("Nats-") else "no such consumer"
        raise MessagingUnavailable(f"{self._stream}/{self._name}: {reason} ({status})")

    async def _unsubscribe_inbox(self) -> None:
        """End the subscription; messages that were not fetched go to the next fetcher."""
        subscription, self._subscription = self._subscription, None
        received_messages, self._received_messages, self._request = (
            self._received_messages,
            deque[Msg](),
            None,
        )
        if subscription is None or self._connection.client.is_closed:
            return
        with translate_errors(f"leaving {self._stream}/{self._name}"):
            await subscription.unsubscribe()
            if self._connection.reconnect_count == self._reconnects:
                for message in received_messages:
                    if _find_status(message) is None:
                        await self._connection.client.publish(message.reply, b"-NAK")


def _read_loop_time() -> float:
    return asyncio.get_running_loop().time()


def _count_behind(message: Msg) -> int:
    """Return how many messages a consumer had yet to deliver, as its reply subject tells."""
    return int(_parse_reply_tokens(message)[6])


def _parse_reply_tokens(message: Msg) -> list[str]:
    """Return a delivery's stream, consumer, count, sequences, time and what is behind it."""
    # $JS.ACK[.<domain>.<account>].<stream>.<consumer>.<delivered>.<stream seq>.…
    tokens = message.reply.split(".")
    return tokens[2:] if len(tokens) == _PLAIN_TOKENS else tokens[4:]


def _find_status(message: Msg) -> str | None:
    return message.headers.get("Status") if message.headers else None
