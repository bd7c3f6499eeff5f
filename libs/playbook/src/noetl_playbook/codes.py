"""What a problem code is: its meaning, how much it weighs, and the way out."""

from enum import StrEnum

import msgspec


class Weight(StrEnum):
    """How a code weighs at the two levels."""

    ERROR = "error"
    STRICT_ERROR = "strict_error"
    WARNING = "warning"
    STRICT_WARNING = "strict_warning"


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """One check, as lint explains it; `wrong` and `right` are fragments of a playbook."""

    code: str
    weight: Weight
    title: str
    advice: str
    wrong: str
    right: str
