"""Mints identities: the only source of randomness."""

import base64
import os
import secrets
import socket
from datetime import UTC, datetime, timedelta

from noetl_chassis.clock import Clock
from noetl_contracts import codec
from noetl_contracts.errors import Retryable

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
NODES_MAX = 1024
BACKWARDS_MS_MAX = 10
AHEAD_MS_MAX = 100
_SEQUENCES_PER_MS = 4096
_MS = timedelta(milliseconds=1)
_random = secrets.SystemRandom()


class ClockWentBackwards(Retryable):
    """The machine's clock was set back; identities would repeat until it has caught up."""


class SnowflakeIds:
    """Mints 63-bit identities that grow with time: 41 bits ms, 10 bits node, 12 bits sequence."""

    def __init__(self, *, node: int, clock: Clock) -> None:
        if not 0 <= node < NODES_MAX:
            raise ValueError(f"a node number is 0 to {NODES_MAX - 1}, got {node}")
        self._node = node
        self._clock = clock
        self._seen_ms = 0
        self._ms = 0
        self._sequence = -1

    def next_id(self) -> str:
        """Mint one identity; raises `ClockWentBackwards`.

        More than 4096 a millisecond borrow from the milliseconds to come, `AHEAD_MS_MAX` at most.
        """
        now_ms = self._read_ms()
        if now_ms > self._ms:
            self._ms, self._sequence = now_ms, -1
        self._sequence += 1
        if self._sequence == _SEQUENCES_PER_MS:
            self._ms, self._sequence = self._ms + 1, 0
        return str(self._ms << 22 | self._node << 12 | self._sequence)

    def _read_ms(self) -> int:
        now_ms = (self._clock.now() - EPOCH) // _MS
        behind_ms = self._seen_ms - now_ms
        if behind_ms > BACKWARDS_MS_MAX:
            raise ClockWentBackwards(f"the clock is {behind_ms} ms behind what it once said")
        self._seen_ms = max(self._seen_ms, now_ms)
        if self._ms - now_ms > AHEAD_MS_MAX:
            raise ClockWentBackwards(f"identities are {self._ms - now_ms} ms ahead of the clock")
        return now_ms


def read_minted_at_ms(identity: str) -> int:
    """Return when a snowflake was minted, in milliseconds since 1970."""
    return (int(identity) >> 22) + int(EPOCH.timestamp() * 1000)


def build_first_identity(moment: datetime) -> str:
    """Return the least snowflake of a moment: those minted before it are less."""
    return str(max(0, (moment - EPOCH) // _MS) << 22)


def build_instance_name(kind: str) -> str:
    """Name a process so that no other process, also after a restart, has the same name."""
    host = socket.gethostname().split(".")[0]
    return f"{kind}-{host}-{os.getpid()}-{secrets.token_hex(3)}"


def mint_token() -> str:
    """Mint 128 random bits as text."""
    return secrets.token_hex(16)


def compute_challenge(verifier: str) -> str:
    """Return the S256 challenge of a random text (RFC 7636, 4.2): it tells nothing of the text."""
    digest = codec.digest_bytes(verifier.encode())
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def draw_noise() -> float:
    """Return a random number from 0 up to 1, for jitter."""
    return _random.random()
