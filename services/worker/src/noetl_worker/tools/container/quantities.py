"""Reads CPU and memory as Kubernetes spells them: `500m`, `1.5`, `256Mi`, `1G`."""

import re
from typing import Any

# With more decimals a share of a CPU would round to none, which is no limit.
_NUMBER = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?)(m|k|K|Ki|M|Mi|G|Gi|T|Ti)?")
_FACTORS = {
    "": 1,
    "k": 1000,
    "K": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "Ki": 1024,
    "Mi": 1024**2,
    "Gi": 1024**3,
    "Ti": 1024**4,
}
_MILLI = "m"


def parse_memory(value: Any) -> int | None:
    """Read a number of bytes; None when the value is none."""
    match = _match_number(value)
    if match is None or match[1] == _MILLI:
        return None
    size_bytes = int(match[0] * _FACTORS[match[1]])
    return size_bytes if size_bytes > 0 else None


def parse_cpus(value: Any) -> float | None:
    """Read a number of CPUs; None when the value is none."""
    match = _match_number(value)
    if match is None or match[1] not in ("", _MILLI):
        return None
    cpus = match[0] / 1000 if match[1] else match[0]
    return cpus if cpus > 0 else None


def _match_number(value: Any) -> tuple[float, str] | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    match = _NUMBER.fullmatch(str(value).strip())
    return None if match is None else (float(match[1]), match[2] or "")
