"""Undoes the escapes of JSON, Python, HTML and URLs in one pass, and tells where each byte stood.

What programs write of a text differs in what they escape, how, and how often: JSON inside JSON, a
`repr` in a log line, a query in a URL that is quoted again. All of them come down to the one text.
"""

import html
import re
from bisect import bisect_right
from collections.abc import Iterator
from functools import lru_cache

# Escapes within escapes; what is nested deeper is not a usual spelling.
_DEPTH_MAX = 6
_TOKEN = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[0-9a-fA-F]{4}"
    rb"|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[\"'\\/abfnrtv0])"
    rb"|%[0-9a-fA-F]{2}"
    rb"|&(?:amp|lt|gt|quot|apos|\#[0-9]{1,7}|\#[xX][0-9a-fA-F]{1,6});"
)
_START = re.compile(rb"[\\%&]")
_LETTERS = {
    b"\\a": b"\a",
    b"\\b": b"\b",
    b"\\f": b"\f",
    b"\\n": b"\n",
    b"\\r": b"\r",
    b"\\t": b"\t",
    b"\\v": b"\v",
    b"\\0": b"\0",
}
_CODE_POINT_MAX = 0x10FFFF
_HIGH_SURROGATE, _LOW_SURROGATE, _FIRST_OF_PAIRS = 0xD800, 0xDC00, 0x10000
_PAIR_LENGTH = 12

Span = tuple[int, int]


class EscapedText:
    """A text as it stands, and as it is when its escapes are undone once, twice and so on."""

    def __init__(self, data: bytes) -> None:
        self._levels = [data]

    def list_levels(self) -> Iterator[tuple[int, bytes]]:
        """Go through the levels; each is made when it is asked for."""
        yield 0, self._levels[0]
        for depth in range(1, _DEPTH_MAX + 1):
            if len(self._levels) == depth:
                escapes = decode_escapes(self._levels[-1])
                if escapes is self._levels[-1]:
                    return
                self._levels.append(escapes)
            yield depth, self._levels[depth]

    def find_origin(self, depth: int, spans: list[Span]) -> list[Span]:
        """Tell which places of the text became these places of a level."""
        for level in reversed(range(depth)):
            spans = _map_spans(self._levels[level], spans)
        return spans


def has_escapes(data: bytes) -> bool:
    """Tell whether anything in a text may be an escape."""
    return _START.search(data) is not None


def decode_escapes(data: bytes) -> bytes:
    """Undo every escape once; what has none comes back as it is."""
    if not has_escapes(data):
        return data
    decoded, count = _TOKEN.subn(_decode_match, data)
    return decoded if count else data


def _decode_match(match: re.Match[bytes]) -> bytes:
    return decode_token(match[0])


@lru_cache(maxsize=4096)
def decode_token(token: bytes) -> bytes:
    """Undo one escape."""
    if token[:1] == b"%":
        return bytes.fromhex(token[1:].decode())
    if token[:1] == b"&":
        return html.unescape(token.decode()).encode(errors="surrogatepass")
    match token[1:2]:
        case b"u" if len(token) == _PAIR_LENGTH:
            high, low = int(token[2:6], 16), int(token[8:], 16)
            point = (high - _HIGH_SURROGATE) * 0x400 + low - _LOW_SURROGATE + _FIRST_OF_PAIRS
            return chr(point).encode()
        case b"u" | b"U":
            point = int.from_bytes(bytes.fromhex(token[2:].decode()))
            return chr(point).encode(errors="surrogatepass") if point <= _CODE_POINT_MAX else token
        case b"x":
            return bytes.fromhex(token[2:].decode())
        case _:
            return _LETTERS.get(token, token[1:])


def _map_spans(data: bytes, spans: list[Span]) -> list[Span]:
    """Give places of a text whose escapes were undone as places of the text before that."""
    starts: list[int] = [0]
    tokens: list[tuple[int, int, int, int]] = [(0, 0, 0, 0)]
    shift = 0
    for match in _TOKEN.finditer(data):
        begin = match.start() - shift
        end = begin + len(decode_token(match[0]))
        shift = match.end() - end
        starts.append(begin)
        tokens.append((begin, end, match.start(), match.end()))

    def map_edge(edge: int, *, is_end: bool) -> int:
        # An end belongs to the byte before it.
        _begin, end, source_begin, source_end = tokens[bisect_right(starts, edge - is_end) - 1]
        if edge - is_end < end:
            return source_end if is_end else source_begin
        return source_end + edge - end

    return [(map_edge(start, is_end=False), map_edge(end, is_end=True)) for start, end in spans]
