"""Canonical bytes, digests and checksums: the only copies of each."""

import hashlib
import math
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

CHECKSUM_NONE = ""

_canonical = msgspec.json.Encoder(order="sorted")
_plain = msgspec.json.Encoder()
_FLOAT_TEXT_MAX = 16


def _parse_exact_number(text: str) -> float | str:
    # Fifteen digits and a point are always read back as they were written.
    if len(text) <= _FLOAT_TEXT_MAX and "e" not in text and "E" not in text:
        return float(text)
    number = float(text)
    return number if math.isfinite(number) and Decimal(repr(number)) == Decimal(text) else text


_preparing = threading.Lock()
_prepared_types: set[Any] = set()
_exact = msgspec.json.Decoder(float_hook=_parse_exact_number)


def encode_canonical(value: Any) -> bytes:
    """Encode as UTF-8 JSON with sorted keys and no white space."""
    try:
        return _canonical.encode(value)
    except TypeError:
        # Keys that are numbers are sorted as the texts that they become.
        return _canonical.encode(decode_json(_plain.encode(value)))


def encode_json(value: Any) -> bytes:
    """Encode as JSON in declaration order, the cheapest form for the wire."""
    return _plain.encode(value)


def encode_text(value: Any) -> str:
    """Encode as JSON text."""
    return _plain.encode(value).decode()


def decode_json(data: bytes | str) -> Any:
    """Decode JSON to plain values; raises `msgspec.DecodeError`."""
    return decode_as(data, Any)


def decode_exactly(data: bytes | str) -> Any:
    """Decode JSON of others; a number that a float does not hold becomes its text.

    Whole numbers of any length stay numbers. Raises `msgspec.DecodeError`.
    """
    return _decode_with_errors(data, _exact.decode)


def decode_as(data: bytes | str, kind: type[T]) -> T:
    """Decode JSON to `kind`; raises `msgspec.DecodeError` or `msgspec.ValidationError`."""
    prepare_type(kind)
    return _decode_with_errors(data, lambda text: msgspec.json.decode(text, type=kind))


def _decode_with_errors(data: bytes | str, decode_: Callable[[bytes | str], T]) -> T:
    try:
        return decode_(data)
    except UnicodeDecodeError as failure:
        raise msgspec.DecodeError(f"JSON is malformed: {failure}") from failure
    except RecursionError as failure:
        raise msgspec.DecodeError("JSON is nested too deeply to be read") from failure


def to_builtins(value: Any) -> Any:
    """Turn structs into the plain mappings, lists and scalars that JSON knows."""
    return msgspec.to_builtins(value)


def convert_value(value: Any, kind: type[T]) -> T:
    """Turn plain values into `kind`; raises `msgspec.ValidationError`."""
    prepare_type(kind)
    return msgspec.convert(value, kind)


def prepare_type(kind: Any) -> None:
    """Let msgspec learn the fields of a type, in one thread at a time.

    It learns them at the first use and shows them before it is done: a second thread that uses the
    type meanwhile ends the process (seen with 0.22).
    """
    if kind in _prepared_types:
        return
    with _preparing:
        msgspec.json.Decoder(kind)
        _prepared_types.add(kind)


def digest_bytes(data: bytes | bytearray | memoryview) -> bytes:
    """Return the 32 bytes of the SHA-256 of `data`."""
    return hashlib.sha256(data).digest()


def digest_hex(data: bytes | bytearray | memoryview) -> str:
    """Fingerprint bytes: lower-case hexadecimal SHA-256."""
    return hashlib.sha256(data).hexdigest()


def start_digest() -> "hashlib._Hash":
    """Start a SHA-256 that is fed in pieces."""
    return hashlib.sha256()


def compute_checksum(value: Any) -> str:
    """Fingerprint a state: the digest of its canonical bytes."""
    return hashlib.sha256(_canonical.encode(value)).hexdigest()


def chain_checksum(previous: str, data: bytes) -> str:
    """Fingerprint `data` together with all that came before it."""
    return hashlib.sha256(previous.encode() + data).hexdigest()
