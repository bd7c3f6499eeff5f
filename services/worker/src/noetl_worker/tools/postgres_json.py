"""JSON columns as values: a number with a fraction that a float would change is a text."""

from decimal import Decimal
from typing import Any

import msgspec

# Fifteen digits and a point pass through a float unchanged.
_EXACT_CHARACTERS = 16


def read_json(text: str) -> Any:
    """Read a JSON text; whole numbers keep all of their digits.

    Raises `msgspec.DecodeError`, and `RecursionError` for a text that is nested too deeply.
    """
    return _decoder.decode(text)


def _exact_number(text: str) -> float | str:
    value = float(text)
    if len(text) <= _EXACT_CHARACTERS and "e" not in text and "E" not in text:
        return value
    return value if Decimal(repr(value)) == Decimal(text) else text


_decoder = msgspec.json.Decoder(float_hook=_exact_number)
