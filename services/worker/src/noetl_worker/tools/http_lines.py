"""An answer of one JSON value a line, read while it comes."""

from collections.abc import AsyncIterator

import msgspec
from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.chunks import CHUNK_BYTES_MAX
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.tools.call import Outcome, Sink
from noetl_worker.tools.http_answer import Inflate, ResponseType

_PLAIN = frozenset({"identity"})
_PACKED = frozenset({"gzip", "x-gzip", "deflate"})
# No bound but the stream's own: what was read is gone when the next piece comes.
_BYTES_MAX = 1 << 62


def check(response_type: ResponseType) -> None:
    """Check that an answer has lines; raises `ToolFailure`."""
    if response_type != "ndjson":
        text = "field 'stream' needs 'response_type: ndjson': one JSON value a line"
        raise ToolFailure(failure("validation", text, source="http"))


def without_body(outcome: Outcome) -> Outcome:
    """Leave out the body whose lines were handed over; that of a refusal stays."""
    if outcome.error is not None or not isinstance(outcome.data, dict):
        return outcome
    about = {name: value for name, value in outcome.data.items() if name != "body"}
    return structs.replace(outcome, data=about)


async def pour(pieces: AsyncIterator[bytes], sink: Sink, *, url: str, packing: str) -> None:
    """Hand the lines of a body over as they come; raises `ToolFailure`."""
    if packing not in _PLAIN | _PACKED:
        text = f"the answer of {url} is packed as '{packing}': gzip and deflate are read"
        raise ToolFailure(failure("parse", text, source="http"))
    inflate = Inflate(packing, url=url, bytes_max=_BYTES_MAX) if packing in _PACKED else None
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + (piece if inflate is None else inflate.feed(piece))).split(b"\n")
        if len(rest) > CHUNK_BYTES_MAX:
            text = f"a line of the answer of {url} is longer than {CHUNK_BYTES_MAX} bytes"
            raise ToolFailure(failure("payload_too_large", text, source="http"))
        await _hand_over(lines, sink, url)
    if inflate is not None:
        inflate.finish()
    await _hand_over([rest], sink, url)


async def _hand_over(lines: list[bytes], sink: Sink, url: str) -> None:
    try:
        rows = [codec.decode_exactly(line) for line in lines if line.strip()]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as problem:
        text = f"the answer of {url} is not ndjson: {problem}"
        raise ToolFailure(failure("parse", text, source="http")) from problem
    if rows:
        await sink.take(rows)
