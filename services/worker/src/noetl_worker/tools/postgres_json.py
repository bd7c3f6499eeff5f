"""JSON columns as values: numbers that a float would change are texts."""

import re
from decimal import Decimal
from typing import Any

import msgspec

from noetl_contracts import codec
from noetl_contracts.plain import plain

# Fifteen digits, and exponents of two, pass through a float unchanged.
_LONG_NUMBER = re.compile(r"\d[\d.]{15}|[eE][+-]?\d{3}")


def read_json(text: str) -> Any:
    """Read a JSON text; raises `ValueError` for one that is nested too deeply."""
    if _LONG_NUMBER.search(text) is None:
        return codec.decode(text)
    try:
        return plain(_exact.decode(text))
    except RecursionError as problem:
        raise ValueError("JSON is nested too deeply to be read") from problem


def _exact_number(text: str) -> float | str:
    value = float(text)
    return value if Decimal(repr(value)) == Decimal(text) else text


_exact = msgspec.json.Decoder(float_hook=_exact_number)
