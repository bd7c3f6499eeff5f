"""The answer to a request: read within bounds, decompressed, decoded as its type says."""

import zlib
from base64 import b64encode
from typing import Any, Literal, assert_never, get_args

import msgspec
from msgspec import Struct

from noetl_contracts import codec
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.masking import Mask
from noetl_worker.domain.texts import shortened
from noetl_worker.tools import http_charsets
from noetl_worker.tools.http_exchange import Response

ResponseType = Literal["auto", "json", "text", "bytes", "ndjson"]
_RESPONSE_TYPES: tuple[ResponseType, ...] = get_args(ResponseType)

_CHUNK_BYTES = 256 * 1024
_STATUS_ERROR = 400
_MASKED_CHARACTERS_MAX = 16 * 1024
_START_CHARACTERS_MAX = 300
# Plain text shrinks to a twentieth at best; only bombs go further for long.
_RATIO_MAX = 200
_RATIO_FREE_BYTES = 1024 * 1024
_DEFLATE_METHOD = 8
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_TEXT_TYPES = ("text/", "application/xml", "application/javascript", "application/yaml")
_TEXT_ENDINGS = ("+xml", "+yaml", "x-www-form-urlencoded", "x-yaml", "ecmascript")


class Answer(Struct, frozen=True, kw_only=True):
    """A response whose body was read whole."""

    status: int
    headers: dict[str, str]
    host: str
    url: str
    body: bytes
    charset: str | None
    elapsed_s: float


class Undecodable(Exception):  # noqa: N818 - it says what the body is
    """A body is not what its type promises."""


def response_type_of(given: Any) -> ResponseType:
    """Check the field `response_type`; raises `ToolFailure`."""
    if given is None:
        return "auto"
    if given not in _RESPONSE_TYPES:
        known = ", ".join(_RESPONSE_TYPES)
        text = f"field 'response_type': {given!r} is none of {known}"
        raise ToolFailure(failure("validation", text, source="http"))
    found: ResponseType = given
    return found


def unpacked(response: Response, *, url: str, bytes_max: int) -> bytes:
    """Return a body of at most so many bytes after decompression; raises `ToolFailure`."""
    inflate = _inflate(response.packing, url=url, bytes_max=bytes_max)
    if inflate is None:
        return response.body
    body = inflate.feed(response.body)
    inflate.finish()
    return body


def too_large(url: str, *, bytes_max: int) -> ToolFailure:
    """Say that an answer is longer than it may be."""
    return _too_large(f"the answer of {url} is longer than {bytes_max} bytes")


def _inflate(packing: str, *, url: str, bytes_max: int) -> "Inflate | None":
    if packing == "identity":
        return None
    if packing not in {"gzip", "x-gzip", "deflate"}:
        text = f"the answer of {url} is packed as '{packing}': gzip and deflate are read"
        raise ToolFailure(failure("parse", text, source="http"))
    return Inflate(packing, url=url, bytes_max=bytes_max)


class Inflate:
    """Unpacks a body piece by piece and never makes much more than it may."""

    def __init__(self, packing: str, *, url: str, bytes_max: int) -> None:
        self._is_gzip = packing != "deflate"
        self._url = url
        self._bytes_max = bytes_max
        self._packed_bytes = 0
        self._bytes = 0
        self._unpacker: Any = None

    def feed(self, packed: bytes) -> bytes:
        """Unpack more; raises `ToolFailure` for what is no such body or grows too much."""
        self._packed_bytes += len(packed)
        found = bytearray()
        while packed:
            if self._unpacker is None:
                self._unpacker = zlib.decompressobj(self._window(packed))
            try:
                piece = self._unpacker.decompress(packed, _CHUNK_BYTES)
            except zlib.error as problem:
                raise self._broken(str(problem)) from problem
            found += piece
            self._count(len(piece))
            packed = self._rest()
        return bytes(found)

    def finish(self) -> None:
        """Check that the body was whole; raises `ToolFailure`."""
        if self._unpacker is not None and not self._unpacker.eof:
            raise self._broken("it ends in the middle")

    def _rest(self) -> bytes:
        """Return what is still packed; a gzip body may have several members."""
        if not self._unpacker.eof:
            return bytes(self._unpacker.unconsumed_tail)
        rest = bytes(self._unpacker.unused_data) if self._is_gzip else b""
        if rest:
            self._unpacker = None
        return rest

    def _window(self, packed: bytes) -> int:
        if self._is_gzip:
            return 16 + zlib.MAX_WBITS
        # Servers disagree on what deflate is: with zlib's header, or without.
        has_header = packed[0] & 0xF == _DEFLATE_METHOD
        return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS

    def _count(self, more: int) -> None:
        self._bytes += more
        if self._bytes > self._bytes_max:
            raise too_large(self._url, bytes_max=self._bytes_max)
        if self._bytes > max(_RATIO_FREE_BYTES, _RATIO_MAX * self._packed_bytes):
            raise _too_large(
                f"the answer of {self._url} unpacks to more than {_RATIO_MAX} times its size"
            )

    def _broken(self, why: str) -> ToolFailure:
        text = f"the answer of {self._url} cannot be unpacked: {why}"
        return ToolFailure(failure("parse", text, source="http"))


def _too_large(text: str) -> ToolFailure:
    return ToolFailure(failure("payload_too_large", text, source="http"))


def described(answer: Answer, response_type: ResponseType) -> tuple[dict[str, Any], str | None]:
    """Return an answer as a result, and why its body is not of its type, if it is not."""
    raw: dict[str, Any] = {
        "status_code": answer.status,
        "headers": answer.headers,
        "url": answer.url,
        "elapsed": answer.elapsed_s,
    }
    try:
        raw["body"] = _parsed(answer, response_type, raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        if answer.status < _STATUS_ERROR:
            return raw, f"the answer of {answer.url} is not {response_type}: {problem}"
        raw["body"] = _text(answer, errors="replace")
    return raw, None


def _parsed(answer: Answer, response_type: ResponseType, raw: dict[str, Any]) -> Any:
    """Decode a body; raises `msgspec.DecodeError`, `UnicodeDecodeError` or `RecursionError`."""
    body = answer.body.removeprefix(_BYTE_ORDER_MARK)
    match response_type:
        case "json":
            return codec.decode_exactly(body)
        case "text":
            return _text(answer, errors="strict")
        case "ndjson":
            return [codec.decode_exactly(line) for line in body.splitlines() if line.strip()]
        case "bytes":
            return _encoded(answer.body, raw)
        case "auto":
            return _guessed(answer, body, raw)
        case _:
            assert_never(response_type)


def _guessed(answer: Answer, body: bytes, raw: dict[str, Any]) -> Any:
    if not body:
        return ""
    media_type = next(
        (item for name, item in answer.headers.items() if name.lower() == "content-type"), ""
    )
    media_type = media_type.partition(";")[0].strip().lower()
    try:
        return codec.decode_exactly(body)
    except msgspec.DecodeError:
        if media_type.endswith("json"):
            raise
    if media_type.startswith(_TEXT_TYPES) or media_type.endswith(_TEXT_ENDINGS):
        return _text(answer, errors="replace")
    if not media_type:
        try:
            return body.decode()
        except UnicodeDecodeError:
            return _encoded(answer.body, raw)
    return _encoded(answer.body, raw)


def _text(answer: Answer, *, errors: str) -> str:
    body = answer.body.removeprefix(_BYTE_ORDER_MARK)
    return body.decode(http_charsets.codec_of(answer.charset), errors=errors)


def _encoded(body: bytes, raw: dict[str, Any]) -> str:
    raw["encoding"] = "base64"
    return b64encode(body).decode()


def body_start(answer: Answer, mask: Mask) -> str:
    """Return the first words of a body that is text, masked, on one line."""
    try:
        text = _text(answer, errors="strict")
    except (UnicodeDecodeError, LookupError):
        return ""
    # What is cut first may end inside a secret: only so much is masked, and less is kept.
    shown = mask.text(text[:_MASKED_CHARACTERS_MAX])
    return shortened(" ".join(shown.split()), _START_CHARACTERS_MAX)
