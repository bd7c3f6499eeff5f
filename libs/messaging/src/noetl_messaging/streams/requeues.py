"""Message ids of requeued dead letters, and a check of the subject to which one is published."""

import re

from noetl_contracts import subjects
from noetl_contracts.errors import MalformedMessage, SubjectError
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


def build_requeue_id(dead_letter: DeadLetter) -> str:
    """Build the message id of a requeued dead letter, the same at each try.

    With its first id the stream would drop it as a duplicate.
    """
    return f"requeued/{dead_letter.requeued + 1}/{dead_letter.sequence}"


def count_requeues(message_id: str) -> int:
    """Return how often a message was requeued, from its message id."""
    match = _REQUEUE_ID.fullmatch(message_id)
    return int(match[1]) if match is not None else 0


def check_requeue_subject(dead_letter: DeadLetter) -> None:
    """Refuse a dead letter whose subject is not of its stream and consumer.

    A worker writes letters of its own queues: sent again they are commands of no other queue.

    Raises `MalformedMessage`.
    """
    prefix = _SUBJECT_PREFIXES.get(dead_letter.stream)
    is_of_stream = prefix is not None and dead_letter.subject.startswith(f"{prefix}.")
    if not is_of_stream or not _is_of_consumer(dead_letter):
        raise MalformedMessage(
            f"dead letter {dead_letter.sequence} names the subject {dead_letter.subject[:200]!r}, "
            f"which is none of {dead_letter.stream[:64]}/{dead_letter.consumer[:64]}: "
            "it cannot be sent again, only dropped"
        )


def _is_of_consumer(dead_letter: DeadLetter) -> bool:
    """Tell whether a command's subject is one that the consumer in the letter reads."""
    if dead_letter.stream != topology.COMMANDS:
        return True
    try:
        about = subjects.parse_command_subject(dead_letter.subject)
    except SubjectError:
        return False
    share = about.tenant_id if about.is_own else None
    return dead_letter.consumer == topology.build_worker_consumer(about.pool, about.lane, share)
