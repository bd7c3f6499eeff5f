"""Answers of HTTP calls: inflated within limits, decoded, and read as values or lines.

Only character sets are taken from the server. Python's codecs would do much else for a name: some
refuse every text, some take escapes apart, and each name that they do not know is remembered.
"""

import zlib
from base64 import b64encode
from collections.abc import AsyncIterator
from encodings import aliases, normalize_encoding
from functools import lru_cache
from typing import Any, Literal, assert_never, get_args

import msgspec
from msgspec import Struct, structs

from noetl_contracts import codec
from noetl_contracts.commands.command_work import CHUNK_BYTES_MAX
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.domain.text_values import shorten_text
from noetl_worker.tools.calls.call import Outcome, RowSink
from noetl_worker.tools.http.exchange import HttpResponse

DEFAULT = "utf-8"
# Codecs that make something else than a text of bytes.
_NO_TEXT_CODECS = frozenset(
    {
        *("base64_codec", "bz2_codec", "hex_codec", "quopri_codec", "rot_13", "uu_codec"),
        *("zlib_codec", "mbcs", "utf_7"),
    }
)
# Codecs of Python that have no alias.
_CODECS_WITHOUT_ALIAS = (
    *("cp1006", "cp720", "cp737", "cp856", "cp874", "cp875", "iso8859_1", "koi8_t", "koi8_u"),
    *("mac_arabic", "mac_croatian", "mac_farsi", "mac_romanian"),
)
_CODECS = {
    **{name: name for name in (*aliases.aliases.values(), *_CODECS_WITHOUT_ALIAS)},
    **aliases.aliases,
}
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
_PLAIN = frozenset({"identity"})
_CODINGS = frozenset({"gzip", "x-gzip", "deflate"})
# No bound but the stream's own: what was read is gone when the next piece comes.
_BYTES_MAX = 1 << 62


@lru_cache(maxsize=256)
def get_codec_name(charset: str | None) -> str:
    """Return Python's codec for a charset of an answer; UTF-8 when the charset is not known."""
    codec_name = _CODECS.get(normalize_encoding(charset or DEFAULT).lower(), DEFAULT)
    return DEFAULT if codec_name in _NO_TEXT_CODECS else codec_name


class HttpAnswer(Struct, frozen=True, kw_only=True):
    """A response whose body was read whole."""

    status: int
    headers: dict[str, str]
    host: str
    url: str
    body: bytes
    charset: str | None
    elapsed_s: float


def parse_response_type(field_value: Any) -> ResponseType:
    """Check the field `response_type`; raises `ToolFailure`."""
    if field_value is None:
        return "auto"
    if field_value not in _RESPONSE_TYPES:
        known_names = ", ".join(_RESPONSE_TYPES)
        text = f"field 'response_type': {field_value!r} is none of {known_names}"
        raise ToolFailure(build_error("validation", text, source="http"))
    response_type: ResponseType = field_value
    return response_type


def inflate_body(response: HttpResponse, *, url: str, bytes_max: int) -> bytes:
    """Return a body of at most so many bytes after decompression; raises `ToolFailure`."""
    inflate = _build_inflater(response.packing, url=url, bytes_max=bytes_max)
    if inflate is None:
        return response.body
    body = inflate.inflate_piece(response.body)
    inflate.check_complete()
    return body


def build_too_large_failure(url: str, *, bytes_max: int) -> ToolFailure:
    """Say that an answer is longer than it may be."""
    return _build_size_failure(f"the answer of {url} is longer than {bytes_max} bytes")


def _build_inflater(packing: str, *, url: str, bytes_max: int) -> "BodyInflater | None":
    if packing == "identity":
        return None
    if packing not in {"gzip", "x-gzip", "deflate"}:
        text = f"the answer of {url} is packed as '{packing}': gzip and deflate are read"
        raise ToolFailure(build_error("parse", text, source="http"))
    return BodyInflater(packing, url=url, bytes_max=bytes_max)


class BodyInflater:
    """Unpacks a body piece by piece and never makes much more than it may."""

    def __init__(self, packing: str, *, url: str, bytes_max: int) -> None:
        self._is_gzip = packing != "deflate"
        self._url = url
        self._bytes_max = bytes_max
        self._packed_bytes = 0
        self._bytes = 0
        self._unpacker: Any = None

    def inflate_piece(self, packed_bytes: bytes) -> bytes:
        """Unpack more; raises `ToolFailure` for what is no such body or grows too much."""
        self._packed_bytes += len(packed_bytes)
        inflated = bytearray()
        while packed_bytes:
            if self._unpacker is None:
                self._unpacker = zlib.decompressobj(self._choose_window(packed_bytes))
            try:
                piece = self._unpacker.decompress(packed_bytes, _CHUNK_BYTES)
            except zlib.error as problem:
                raise self._build_broken_failure(str(problem)) from problem
            inflated += piece
            self._count_bytes(len(piece))
            packed_bytes = self._get_rest()
        return bytes(inflated)

    def check_complete(self) -> None:
        """Check that the body was whole; raises `ToolFailure`."""
        if self._unpacker is not None and not self._unpacker.eof:
            raise self._build_broken_failure("it ends in the middle")

    def _get_rest(self) -> bytes:
        """Return what is still packed; a gzip body may have several members."""
        if not self._unpacker.eof:
            return bytes(self._unpacker.unconsumed_tail)
        packed_bytes = bytes(self._unpacker.unused_data) if self._is_gzip else b""
        if packed_bytes:
            self._unpacker = None
        return packed_bytes

    def _choose_window(self, packed_bytes: bytes) -> int:
        if self._is_gzip:
            return 16 + zlib.MAX_WBITS
        # Servers disagree on what deflate is: with zlib's header, or without.
        has_header = packed_bytes[0] & 0xF == _DEFLATE_METHOD
        return zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS

    def _count_bytes(self, byte_count: int) -> None:
        self._bytes += byte_count
        if self._bytes > self._bytes_max:
            raise build_too_large_failure(self._url, bytes_max=self._bytes_max)
        if self._bytes > max(_RATIO_FREE_BYTES, _RATIO_MAX * self._packed_bytes):
            raise _build_size_failure(
                f"the answer of {self._url} unpacks to more than {_RATIO_MAX} times its size"
            )

    def _build_broken_failure(self, reason: str) -> ToolFailure:
        text = f"the answer of {self._url} cannot be unpacked: {reason}"
        return ToolFailure(build_error("parse", text, source="http"))


def _build_size_failure(text: str) -> ToolFailure:
    return ToolFailure(build_error("payload_too_large", text, source="http"))


def describe_answer(
    answer: HttpAnswer, response_type: ResponseType
) -> tuple[dict[str, Any], str | None]:
    """Return an answer as a result, and why its body is not of its type, if it is not."""
    raw: dict[str, Any] = {
        "status_code": answer.status,
        "headers": answer.headers,
        "url": answer.url,
        "elapsed": answer.elapsed_s,
    }
    try:
        raw["body"] = _decode_body(answer, response_type, raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        if answer.status < _STATUS_ERROR:
            return raw, f"the answer of {answer.url} is not {response_type}: {problem}"
        raw["body"] = _decode_text(answer, errors="replace")
    return raw, None


def _decode_body(answer: HttpAnswer, response_type: ResponseType, raw: dict[str, Any]) -> Any:
    """Decode a body; raises `msgspec.DecodeError`, `UnicodeDecodeError` or `RecursionError`."""
    body = answer.body.removeprefix(_BYTE_ORDER_MARK)
    match response_type:
        case "json":
            return codec.decode_exactly(body)
        case "text":
            return _decode_text(answer, errors="strict")
        case "ndjson":
            return [codec.decode_exactly(line) for line in body.splitlines() if line.strip()]
        case "bytes":
            return _encode_base64(answer.body, raw)
        case "auto":
            return _guess_body(answer, body, raw)
        case _:
            assert_never(response_type)


def _guess_body(answer: HttpAnswer, body: bytes, raw: dict[str, Any]) -> Any:
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
        return _decode_text(answer, errors="replace")
    if not media_type:
        try:
            return body.decode()
        except UnicodeDecodeError:
            return _encode_base64(answer.body, raw)
    return _encode_base64(answer.body, raw)


def _decode_text(answer: HttpAnswer, *, errors: str) -> str:
    body = answer.body.removeprefix(_BYTE_ORDER_MARK)
    return body.decode(get_codec_name(answer.charset), errors=errors)


def _encode_base64(body: bytes, raw: dict[str, Any]) -> str:
    raw["encoding"] = "base64"
    return b64encode(body).decode()


def extract_body_start(answer: HttpAnswer, mask: SecretMask) -> str:
    """Return the first words of a body that is text, masked, on one line."""
    try:
        text = _decode_text(answer, errors="strict")
    except (UnicodeDecodeError, LookupError):
        return ""
    # What is cut first may end inside a secret: only so much is masked, and less is kept.
    masked_text = mask.mask_text(text[:_MASKED_CHARACTERS_MAX])
    return shorten_text(" ".join(masked_text.split()), _START_CHARACTERS_MAX)


def check_lines_type(response_type: ResponseType) -> None:
    """Check that an answer has lines; raises `ToolFailure`."""
    if response_type != "ndjson":
        text = "field 'stream' needs 'response_type: ndjson': one JSON value a line"
        raise ToolFailure(build_error("validation", text, source="http"))


def drop_body(outcome: Outcome) -> Outcome:
    """Leave out the body whose lines were handed over; that of a refusal stays."""
    if outcome.error is not None or not isinstance(outcome.data, dict):
        return outcome
    about = {name: value for name, value in outcome.data.items() if name != "body"}
    return structs.replace(outcome, data=about)


async def stream_lines(
    pieces: AsyncIterator[bytes], sink: RowSink, *, url: str, packing: str
) -> None:
    """Hand the lines of a body over as they come; raises `ToolFailure`."""
    if packing not in _PLAIN | _CODINGS:
        text = f"the answer of {url} is packed as '{packing}': gzip and deflate are read"
        raise ToolFailure(build_error("parse", text, source="http"))
    inflate = BodyInflater(packing, url=url, bytes_max=_BYTES_MAX) if packing in _CODINGS else None
    line = b""
    async for piece in pieces:
        *lines, line = (line + (piece if inflate is None else inflate.inflate_piece(piece))).split(
            b"\n"
        )
        if len(line) > CHUNK_BYTES_MAX:
            text = f"a line of the answer of {url} is longer than {CHUNK_BYTES_MAX} bytes"
            raise ToolFailure(build_error("payload_too_large", text, source="http"))
        await _write_lines(lines, sink, url)
    if inflate is not None:
        inflate.check_complete()
    await _write_lines([line], sink, url)


async def _write_lines(lines: list[bytes], sink: RowSink, url: str) -> None:
    try:
        rows = [codec.decode_exactly(line) for line in lines if line.strip()]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        text = f"the answer of {url} is not ndjson: {problem}"
        raise ToolFailure(build_error("parse", text, source="http")) from problem
    if rows:
        await sink.write_rows(rows)
