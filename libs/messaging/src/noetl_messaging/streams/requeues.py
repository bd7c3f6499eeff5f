"""Message ids of requeued dead letters, and a check of the subject to which one is published."""

import re

from noetl_contracts import subjects
from noetl_contracts.errors import MalformedMessage
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import DeadLetter

_REQUEUE_ID = re.compile(r"requeued/(\d{1,9})/\d+")
# A dead letter names its subject itself: it may only be published to its own stream.
_SUBJECT_PREFIXES = {
    topology.INGEST: subjects.INGEST,
    topology.EVENTS: subjects.EVENTS,
    topology.COMMANDS: subjects.COMMANDS,
    topology.TRIGGERS: subjects.TRIGGERS,
}


def build_requeue_id(letter: DeadLetter) -> str:
    """Build the message id of a requeued dead letter, the same at each try.

    With its first id the stream would drop it as a duplicate.
    """
    return f"requeued/{letter.requeued + 1}/{letter.sequence}"


def count_requeues(message_id: str) -> int:
    """Return how often a message was requeued, from its message id."""
    match = _REQUEUE_ID.fullmatch(message_id)
    return int(match[1]) if match is not None else 0


def check_requeue_subject(letter: DeadLetter) -> None:
    """Refuse a dead letter whose subject is not of its stream; raises `MalformedMessage`."""
    prefix = _SUBJECT_PREFIXES.get(letter.stream)
    if prefix is None or not letter.subject.startswith(f"{prefix}."):
        raise MalformedMessage(
            f"dead letter {letter.sequence} names the subject {letter.subject[:200]!r}, which is "
            f"none of stream {letter.stream[:64]!r}: it cannot be sent again, only dropped"
        )
