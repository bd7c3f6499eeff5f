"""Plain YAML scalars as values: the YAML 1.2 core schema."""

import re

DIGITS_MAX = 1000

_NULL = re.compile(r"(?:~|null|Null|NULL|)\Z")
_TRUE = re.compile(r"(?:true|True|TRUE)\Z")
_FALSE = re.compile(r"(?:false|False|FALSE)\Z")
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\Z")
_OCTAL_OR_HEX = re.compile(r"0(?:o[0-7]+|x[0-9a-fA-F]+)\Z")
_FLOAT = re.compile(
    r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?\Z",
)
_AMBIGUOUS = re.compile(r"(?:yes|no|on|off|y|n)\Z", re.IGNORECASE)


class TooLongError(Exception):
    """A number has more digits than are read."""


def is_ambiguous(text: str) -> bool:
    """Tell whether some readers of YAML take a word for a boolean."""
    return _AMBIGUOUS.match(text) is not None


def resolve(text: str) -> str | bool | float | None:
    """Give a plain scalar its core type; raises `TooLongError`."""
    if _NULL.match(text):
        return None
    if _TRUE.match(text) or _FALSE.match(text):
        return text[0] in "tT"
    if len(text) > DIGITS_MAX and (_FLOAT.match(text) or _OCTAL_OR_HEX.match(text)):
        raise TooLongError
    if _INT.match(text):
        return int(text)
    if _OCTAL_OR_HEX.match(text):
        return int(text, 0)
    if _FLOAT.match(text):
        return float(text)
    return text
