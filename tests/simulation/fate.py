"""What goes wrong in one run: which faults there are, how often, until when; and the trace."""

import hashlib
import random
from typing import Any

import msgspec
from msgspec import Struct

FAULTS = (
    "crash",
    "pause",
    "refused",
    "lost_reply",
    "slow",
    "lost_delivery",
    "lost_message",
    "lost_ack",
    "lost_hint",
    "duplicate",
    "late",
    "stale",
    "wipe",
    "partition",
    "restart",
    "cut",
    "stranded",
    "long",
    "cut_at_work",
)
# The most of each: a share of the calls, for crash and pause the mean number of steps between two,
# for wipe and partition seconds between two.
_RATES: dict[str, tuple[float, float]] = {
    "crash": (320.0, 6_400.0),
    "pause": (400.0, 6_400.0),
    "refused": (0.002, 0.06),
    "lost_reply": (0.002, 0.06),
    "slow": (0.002, 0.06),
    "lost_delivery": (0.005, 0.15),
    "lost_message": (0.001, 0.02),
    "lost_ack": (0.005, 0.15),
    "lost_hint": (0.05, 1.0),
    "duplicate": (0.005, 0.2),
    "late": (0.005, 0.2),
    "stale": (0.01, 0.4),
    "wipe": (8.0, 60.0),
    "partition": (3.0, 40.0),
    # Of the fetches that bring something: those after which the broker is killed.
    "restart": (0.002, 0.1),
    # Of the calls: those at which the line between the two breaks.
    "cut": (0.001, 0.02),
    # Of the calls into a partition: those that arrive at its end, instead of failing.
    "stranded": (0.05, 0.8),
    # Of the tasks outside: those that take longer than a lease.
    "long": (0.02, 0.4),
    # Of those: how many lose the broker meanwhile.
    "cut_at_work": (0.3, 1.0),
}
# The longest breaks of a line: within a lease, about as long as one, and beyond it.
_CUTS_S = (6.0, 12.0, 24.0)
_QUIET_SHARE = 0.45
_CALM_SHARE = 0.04


class Weather(Struct, frozen=True, kw_only=True):
    """The faults of one run; what is not named does not happen."""

    rates: dict[str, float] = msgspec.field(default_factory=dict)
    until_s: float = 30.0


def draw_weather(chance: random.Random) -> Weather:
    """Draw which faults a run has, and how many of each."""
    until_s = chance.choice([10.0, 20.0, 40.0, 60.0])
    if chance.random() < _CALM_SHARE:
        return Weather(until_s=until_s)
    rates = {}
    for fault in FAULTS:
        low, high = _RATES[fault]
        drawn = low * (high / low) ** chance.random()
        if chance.random() >= _QUIET_SHARE:
            rates[fault] = drawn
    return Weather(rates=rates, until_s=until_s)


class Fate:
    """Decides what happens to each call, and writes down all that did."""

    def __init__(self, chance: random.Random, weather: Weather, *, now: Any) -> None:
        self.chance = chance
        self.weather = weather
        self.is_healed = False
        self.counts: dict[str, int] = {}
        self.now = now
        self._lines: list[str] = []

    def happens(self, fault: str) -> bool:
        """Tell whether a fault happens here and now."""
        rate = self.weather.rates.get(fault)
        if rate is None or self.is_healed or self.chance.random() >= rate:
            return False
        self.count(fault)
        return True

    def next_strike(self, fault: str) -> float:
        """Draw the steps or seconds until the next fault of a kind."""
        mean = self.weather.rates.get(fault)
        return float("inf") if mean is None else 1 + self.chance.expovariate(1 / mean)

    def cut_s(self) -> float:
        """Draw how long a line stays broken."""
        return self.chance.random() * self.chance.choice(_CUTS_S)

    def count(self, fault: str) -> None:
        """Note that a fault happened."""
        self.counts[fault] = self.counts.get(fault, 0) + 1

    def note(self, *words: object) -> None:
        """Write a line of the trace."""
        self._lines.append(f"{self.now():.6f} {' '.join(map(str, words))}")

    def trace(self) -> str:
        """Return everything that happened, a line each."""
        return "\n".join(self._lines)

    def digest(self) -> str:
        """Name the trace: the same for the same seed."""
        return hashlib.sha256(self.trace().encode()).hexdigest()[:16]
