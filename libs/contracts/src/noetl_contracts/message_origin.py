"""Reads which span a stored message comes from, without reading the rest of it."""

import msgspec
from msgspec import Struct


class _TracedMessage(Struct, frozen=True):
    """What commands, facts and batches of events have in common."""

    traceparent: str | None = None


_decoder = msgspec.json.Decoder(_TracedMessage)


def find_traceparent(data: bytes) -> str | None:
    """Return the `traceparent` in the body of a message; None where it has none that can be read.

    A message that is not as declared is sent all the same: its reader refuses it.
    """
    try:
        return _decoder.decode(data).traceparent
    except msgspec.DecodeError:
        return None
