"""Server-sent events out of bytes, without trusting the sender's sizes."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

LINE_BYTES_MAX = 8 * 1024 * 1024


class Message(Struct, frozen=True, kw_only=True):
    """One message; a heartbeat has no data."""

    event: str = "message"
    data: str | None = None
    message_id: str | None = None


class LineTooLongError(Exception):
    """The sender does not speak server-sent events."""


def messages(chunks: Iterable[bytes]) -> Iterator[Message]:
    """Yield messages, comments as heartbeats among them."""
    fields: dict[str, str] = {}
    data: list[str] = []
    for line in _lines(chunks):
        if line.startswith(":"):
            yield Message()
            continue
        if line:
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                data.append(value)
            else:
                fields[name] = value
            continue
        if data or "event" in fields:
            yield Message(
                event=fields.get("event", "message"),
                data="\n".join(data),
                message_id=fields.get("id"),
            )
        fields, data = {}, []


def _lines(chunks: Iterable[bytes]) -> Iterator[str]:
    """Cut at line feeds only: JSON may hold every other line separator that Unicode knows."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.removesuffix(b"\r").decode(errors="replace")
        if len(rest) > LINE_BYTES_MAX:
            raise LineTooLongError(f"a line of more than {LINE_BYTES_MAX} bytes")
