"""Checks an HTTP response's head: it fits the request, and the end of its body is unambiguous.

libcurl reads more than RFC 9112 lets a client read. What it and a proxy read differently lets one
answer end where another begins.
"""

from functools import lru_cache

_INTERIM_HEADS_MAX = 16
_SWITCHING = b"101"
_LENGTH = b"content-length"
_FRAMING = frozenset({_LENGTH, b"transfer-encoding"})
_STATUS_DIGITS = 3
# Lines of headers up to this length are remembered.
_KNOWN_BYTES_MAX = 128


class ResponseMisfit(ConnectionError):  # noqa: N818 - it says what happened
    """What a server sent is no answer to the request; its connection is closed."""


def find_head_problem(lines: list[bytes], interim_heads: int) -> str | None:
    """Say why a head is no answer, if it is none; `lines` begin with the status line."""
    version, status = _split_status(lines[0]) if lines else (b"", b"")
    if len(status) != _STATUS_DIGITS or not status.isdigit():
        return "it has no status of three digits"
    lengths: list[bytes] = []
    codings: list[bytes] = []
    for line in lines[1:]:
        name, has_space = _read_name(line) if len(line) <= _KNOWN_BYTES_MAX else _find_name(line)
        if name not in _FRAMING:
            continue
        if has_space:
            return f"it has a space before the colon of {name.decode()}"
        (lengths if name == _LENGTH else codings).append(line)
    if status[:1] == b"1":
        return _find_interim_problem(status, interim_heads, has_body=bool(lengths or codings))
    if lengths and codings:
        return "it has both Content-Length and Transfer-Encoding"
    if codings and version != b"HTTP/1.1":
        return "it has Transfer-Encoding in HTTP/1.0"
    if len(codings) > 1 or (codings and _read_value(codings[0]) != b"chunked"):
        return "its Transfer-Encoding is not 'chunked' alone"
    return None


def _find_interim_problem(status: bytes, interim_heads: int, *, has_body: bool) -> str | None:
    if status == _SWITCHING:
        return "it changes the protocol (101), for which nobody asked"
    if has_body:
        return f"it has a body with the status {status.decode(errors='replace')}"
    if interim_heads >= _INTERIM_HEADS_MAX:
        return f"more than {_INTERIM_HEADS_MAX} interim answers came before it"
    return None


def is_interim(lines: list[bytes]) -> bool:
    """Tell whether another head follows this one."""
    return _split_status(lines[0])[1][:1] == b"1"


@lru_cache(maxsize=64)
def _split_status(line: bytes) -> tuple[bytes, bytes]:
    version, _, status_text = line.partition(b" ")
    return version, status_text.strip().partition(b" ")[0]


def _find_name(line: bytes) -> tuple[bytes, bool]:
    """Give the name of a header in small letters, and whether a space surrounds it."""
    name = line.partition(b":")[0].lower()
    return name.strip(), name.strip() != name


# Servers say much the same in each answer.
_read_name = lru_cache(maxsize=1024)(_find_name)


def _read_value(line: bytes) -> bytes:
    return line.partition(b":")[2].strip().lower()
