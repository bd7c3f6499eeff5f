"""When messages come again that wait for a place of their trigger.

The messages of a subject come again one after the other, in the order in which they were put off,
so many a second, however many wait: a place that is given back is taken soon, and a long queue
costs no more than a short one.
"""

from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts.errors import Retryable

# A message that waits comes again after this at the earliest.
WAIT_S = 2.0
MESSAGES_PER_S = 50
# All places are taken: nothing is asked for so long.
FULL_S = 0.5
# Of more subjects than this the ones of which a message waited longest ago are forgotten.
SUBJECTS_MAX = 10_000


class PlacesTaken(Retryable):
    """As many executions of a trigger run as may run at once."""


class _SubjectWait(Struct, kw_only=True):
    full_until_s: float
    last_at_s: float


class MessageWaits:
    """Puts messages off, by their subjects."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wait_by_subject: dict[str, _SubjectWait] = {}

    def is_full(self, subject: str) -> bool:
        """Tell whether the places of a subject's trigger were all taken a moment ago."""
        wait = self._wait_by_subject.get(subject)
        return wait is not None and self._clock.monotonic_s() < wait.full_until_s

    def note_full(self, subject: str) -> None:
        """Remember that the places of a subject's trigger are all taken."""
        now_s = self._clock.monotonic_s()
        wait = self._wait_by_subject.pop(subject, None) or _SubjectWait(
            full_until_s=now_s, last_at_s=now_s
        )
        wait.full_until_s = now_s + FULL_S
        self._wait_by_subject[subject] = wait
        if len(self._wait_by_subject) > SUBJECTS_MAX:
            del self._wait_by_subject[next(iter(self._wait_by_subject))]

    def plan_return_s(self, subject: str) -> float:
        """Return in how many seconds the next message of a full subject comes again."""
        now_s, wait = self._clock.monotonic_s(), self._wait_by_subject[subject]
        wait.last_at_s = max(wait.last_at_s + 1 / MESSAGES_PER_S, now_s + WAIT_S)
        return wait.last_at_s - now_s
