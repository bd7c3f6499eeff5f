"""What streams answer to publications, told to whoever published by the token of the reply."""

from collections.abc import Callable

import msgspec
from msgspec import Struct
from nats.aio.client import Client
from nats.aio.msg import Msg

from noetl_contracts import codec

Hear = Callable[["Answer"], None]
_STATUS = "Status"


class Refusal(Struct, frozen=True, kw_only=True):
    """Why a stream did not take a message."""

    description: str = ""
    err_code: int = 0


class Answer(Struct, frozen=True, kw_only=True):
    """A stream's answer; without an error the message is stored."""

    error: Refusal | None = None

    @property
    def is_stored(self) -> bool:
        """Tell whether the message is in the stream."""
        return self.error is None


class Answers:
    """Hears the answers of one connection under one inbox; a late one is heard by nobody."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._hear_by_token: dict[str, Hear] = {}
        self._inbox = ""
        self._count = 0

    async def expect(self, hear: Hear) -> str:
        """Return the subject to be answered under; `hear` is called once at most."""
        if not self._inbox:
            inbox = self._client.new_inbox()
            await self._client.subscribe(f"{inbox}.*", cb=self._take)
            self._inbox = inbox
        self._count += 1
        token = str(self._count)
        self._hear_by_token[token] = hear
        return f"{self._inbox}.{token}"

    def forget(self, subject: str) -> None:
        """Expect an answer no longer."""
        self._hear_by_token.pop(subject.rpartition(".")[2], None)

    async def _take(self, message: Msg) -> None:
        hear = self._hear_by_token.pop(message.subject.rpartition(".")[2], None)
        if hear is not None:
            hear(_read(message))


def _read(message: Msg) -> Answer:
    if message.headers and _STATUS in message.headers:
        # Nobody listens to the subject: there is no such stream.
        return Answer(error=Refusal(description=f"no stream takes it ({message.headers[_STATUS]})"))
    try:
        return codec.decode_as(message.data, Answer)
    except msgspec.DecodeError as failure:
        return Answer(error=Refusal(description=f"the answer cannot be read: {failure}"))
