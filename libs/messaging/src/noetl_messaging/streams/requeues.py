"""How often a given-up message was sent again, and to where it may be sent."""

import re

from noetl_contracts import subjects
from noetl_contracts.errors import MalformedMessage
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import DeadLetter

_NAMED = re.compile(r"requeued/(\d{1,9})/\d+")
# A letter says itself where its message was: what is sent again goes to its own stream alone.
_SUBJECTS = {
    topology.INGEST: subjects.INGEST,
    topology.EVENTS: subjects.EVENTS,
    topology.COMMANDS: subjects.COMMANDS,
    topology.TRIGGERS: subjects.TRIGGERS,
}


def build_requeue_id(letter: DeadLetter) -> str:
    """Name the message of a letter that is sent again, the same at each try.

    The first identity would be dropped as a duplicate.
    """
    return f"requeued/{letter.requeued + 1}/{letter.sequence}"


def count_requeues(message_id: str) -> int:
    """Return how often a message has been sent again, which its identity says."""
    named = _NAMED.fullmatch(message_id)
    return int(named[1]) if named is not None else 0


def check_requeue_subject(letter: DeadLetter) -> None:
    """Refuse a letter whose subject is not of its stream; raises `MalformedMessage`."""
    prefix = _SUBJECTS.get(letter.stream)
    if prefix is None or not letter.subject.startswith(f"{prefix}."):
        raise MalformedMessage(
            f"dead letter {letter.sequence} names the subject {letter.subject[:200]!r}, which is "
            f"none of stream {letter.stream[:64]!r}: it cannot be sent again, only dropped"
        )
