"""Results of the checks that verify a finished run of the workload."""

from dataclasses import dataclass, field
from typing import Any

SHOWN_MAX = 20


class WitnessError(RuntimeError):
    """A source of evidence (table, event log, server log) is missing or incomplete: no verdict."""


@dataclass(slots=True)
class Check:
    """One named check: how much it looked at, and what was wrong."""

    name: str
    title: str
    inspected: int = 0
    wrong: int = 0
    first_differences: list[str] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def has_passed(self) -> bool:
        """Whether there was something to look at and nothing was wrong."""
        return self.inspected > 0 and self.wrong == 0

    def record_difference(self, text: str) -> None:
        """Record one difference."""
        self.wrong += 1
        if len(self.first_differences) < SHOWN_MAX:
            self.first_differences.append(text)

    def expect_equal(self, subject: str, value: object, expected: object) -> None:
        """Look at one thing and compare it."""
        self.inspected += 1
        if value != expected:
            self.record_difference(f"{subject}: {value}, expected {expected}")

    def require_condition(self, *, holds: bool, otherwise: str) -> None:
        """Look at one thing that must hold."""
        self.inspected += 1
        if not holds:
            self.record_difference(otherwise)

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        return {
            "check": self.name,
            "title": self.title,
            "passed": self.has_passed,
            "inspected": self.inspected,
            "differences": self.wrong,
            "first_differences": self.first_differences,
            "notes": self.notes,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTerms:
    """What the verifier was told about the run; nothing here comes from a witness."""

    variant: str
    facilities: int
    patients: int
    execution: str
    nonce: str
    is_fault_free: bool
    is_floor: bool
    is_exactly_once: bool
    rules: frozenset[str]
    slots: int
    frame_rows: int
    max_attempts: int
    fans_out: bool = True
