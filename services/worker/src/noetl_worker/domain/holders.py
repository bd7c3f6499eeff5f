"""Names of those who hold a command: which message handed it over, and in which of its runs."""

_SEPARATOR = "."
# Events bear the name: so many characters tell the few runs of one message apart.
_TOKEN_CHARACTERS = 8


def name(stream_sequence: int, *, token: str) -> str:
    """Name one run of one message.

    A sequence alone would not do: NATS Server writes a consumer's state ten times a second at most,
    so one that is killed hands over as new what it had handed over just before.
    """
    return f"{stream_sequence}{_SEPARATOR}{token[:_TOKEN_CHARACTERS]}"


def have_one_message(holder: str, other: str) -> bool:
    """Tell whether two runs were begun by the same message, which only one of them still has."""
    return _sequence(holder) == _sequence(other)


def _sequence(holder: str) -> str:
    return holder.partition(_SEPARATOR)[0]
