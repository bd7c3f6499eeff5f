"""How a check of the stack came out."""

from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(Struct, frozen=True, kw_only=True):
    """One thing looked at."""

    name: str
    verdict: Verdict
    found: str
    way_out: str = ""
