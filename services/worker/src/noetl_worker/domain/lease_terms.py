"""Terms of a command's lease: its length, the time left, and the name of its holder."""

from msgspec import Struct

MARGIN = 0.2
_BEATS_PER_LEASE_MIN = 3
_SEPARATOR = "."
# Events bear the name: so many characters tell the few runs of one message apart.
_TOKEN_CHARACTERS = 8


class Lease(Struct, frozen=True, kw_only=True):
    """A right of `lease_s` seconds, renewed every `heartbeat_s`.

    The consumer grants `spare_s` more than the command wants: so much older may a delivery be.
    """

    lease_s: float
    heartbeat_s: float
    spare_s: float = 0.0


def fit_lease(*, lease_s: float, heartbeat_s: float, ack_wait_s: float) -> Lease:
    """Fit a command's lease into the consumer's ack wait, with at least three heartbeats in it."""
    granted_s = min(lease_s, ack_wait_s)
    return Lease(
        lease_s=granted_s,
        heartbeat_s=min(heartbeat_s, granted_s / _BEATS_PER_LEASE_MIN),
        spare_s=ack_wait_s - granted_s,
    )


def compute_lease_start(lease: Lease, *, age_s: float, now: float) -> float:
    """Return when the lease of a delivery began that was handed over `age_s` seconds ago."""
    return now - max(0.0, age_s - lease.spare_s)


def compute_remaining_s(lease: Lease, *, confirmed_at: float, now: float) -> float:
    """Return for how long work may go on, on a monotonic clock; 0 or less means stop."""
    return confirmed_at + lease.lease_s * (1 - MARGIN) - now


def build_holder_name(stream_sequence: int, *, token: str) -> str:
    """Name one run of one message.

    A sequence alone would not do: NATS Server writes a consumer's state ten times a second at most,
    so one that is killed hands over as new what it had handed over just before.
    """
    return f"{stream_sequence}{_SEPARATOR}{token[:_TOKEN_CHARACTERS]}"


def is_same_message(holder: str, other: str) -> bool:
    """Tell whether two runs were begun by the same message, which only one of them still has."""
    return _parse_sequence(holder) == _parse_sequence(other)


def _parse_sequence(holder: str) -> str:
    return holder.partition(_SEPARATOR)[0]
