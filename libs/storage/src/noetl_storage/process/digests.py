"""Finds digests of payloads in text of any kind: the collector keeps what is still mentioned.

Rather one too many is found than one too few.
"""

import re
from collections.abc import Collection, Iterable

SHA256_CHARACTERS = 64
_RUN = re.compile(rb"[0-9a-f]{64,}")


def list_hex_runs(text: bytes | memoryview) -> list[str]:
    """Return every run of hexadecimal digits in which a digest may stand."""
    return [run.decode() for run in _RUN.findall(text)]


def find_known_digests(digit_runs: Iterable[str], digests: Collection[str]) -> set[str]:
    """Return which digests stand in runs of hexadecimal digits, at any place.

    What precedes a digest in its run may be digits as well.
    """
    return {
        part
        for digit_run in digit_runs
        for start in range(len(digit_run) - SHA256_CHARACTERS + 1)
        if (part := digit_run[start : start + SHA256_CHARACTERS]) in digests
    }
