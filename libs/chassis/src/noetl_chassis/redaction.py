"""Masks the secrets of a process in everything that it logs."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from noetl_chassis.settings import MASK
from noetl_contracts.credentials import TEXT_PREFIX

_SEALED = re.compile(re.escape(TEXT_PREFIX) + r"[0-9a-f]{8}:[A-Za-z0-9_-]+")
_SEALED_BYTES = re.compile(_SEALED.pattern.encode())
_maskers: list[Callable[[str], str]] = []


@contextmanager
def add_masker(mask: Callable[[str], str]) -> Iterator[None]:
    """Let a masker see every log line, as it is written, while the block runs."""
    _maskers.append(mask)
    try:
        yield
    finally:
        _maskers.remove(mask)


def mask_log_line(text: str) -> str:
    """Mask a finished log line."""
    for mask in _maskers:
        text = mask(text)
    return mask_sealed_values(text)


def mask_sealed_values(text: str) -> str:
    """Show `***` for sealed values: what people cannot open they need not see."""
    return _SEALED.sub(MASK, text) if TEXT_PREFIX in text else text


def mask_sealed_bytes(data: bytes) -> bytes:
    """Show `***` for sealed values in encoded JSON."""
    return _SEALED_BYTES.sub(MASK.encode(), data) if TEXT_PREFIX.encode() in data else data
