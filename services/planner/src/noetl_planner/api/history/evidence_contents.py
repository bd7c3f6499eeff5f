"""The bytes behind a history, for evidence that is checked elsewhere: payloads and chunks of logs.

They are given as they are kept, so that their digests can be computed again. What holds a sealed
value is left out: masked, it would not have its digest.
"""

import base64
from collections.abc import Sequence
from typing import Annotated, Any

from litestar import Router, get
from litestar.di import Provide
from litestar.params import QueryParameter
from msgspec import Struct, structs

from noetl_chassis import redaction
from noetl_contracts import codec
from noetl_contracts.ledger.stored_event import StoredEvent
from noetl_contracts.payloads import PayloadRef
from noetl_planner.api.history import cuts
from noetl_planner.api.history.cuts import History
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.watch.log_chunks import LogChunks
from noetl_replay import payload_references
from noetl_storage.ports.errors import NameRefused, PayloadCorrupt, PayloadMissing
from noetl_storage.ports.ledger_ports import Payloads

EVENTS_MAX = 1000
CHUNKS_MAX = 200
# The contents of one answer.
BYTES_MAX = 8 * 1024 * 1024
TOO_LARGE, SEALED = "too_large", "sealed"


class KeptContent(Struct, frozen=True, kw_only=True):
    """Bytes in base64, and their SHA-256; `left_out` says why there are none.

    It is `too_large`, `sealed`, `missing`, `corrupt` or `refused`.
    """

    name: str
    sha256: str
    bytes: int
    content: str | None = None
    left_out: str = ""


class PayloadContents(Struct, frozen=True, kw_only=True):
    """The payloads that a page of events refers to; their names are their locators."""

    execution_id: str
    contents: list[KeptContent]
    next_after: int
    has_more: bool


class LogContents(Struct, frozen=True, kw_only=True):
    """A page of the chunks of an execution's logs, in the order of their names."""

    execution_id: str
    contents: list[KeptContent]
    next_after: str
    has_more: bool


BytesMax = Annotated[int, QueryParameter(ge=0, le=BYTES_MAX)]


@get("/contents", tags=["replay"])
async def list_contents(
    services: Services,
    history: History,
    after: Annotated[int, QueryParameter(ge=0)] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=EVENTS_MAX)] = 200,
    bytes_max: BytesMax = BYTES_MAX,
) -> PayloadContents:
    """Read the payloads that a page of events refers to, as far as they fit the answer.

    The page ends before an event whose payloads would fit the next answer.
    """
    page = await services.history.audit.read_stored_events(
        history.execution_id, after_version=after, events_max=limit
    )
    contents, last = await _take_payloads(services, page, bytes_max)
    last = last or after
    return PayloadContents(
        execution_id=history.execution_id,
        contents=contents,
        next_after=last,
        has_more=last < history.version and bool(page),
    )


async def _take_payloads(
    services: ApiServices, page: Sequence[StoredEvent], bytes_max: int
) -> tuple[list[KeptContent], int]:
    """Return what fits one answer, and the version of the last event that it covers."""
    contents: dict[str, KeptContent] = {}
    bytes_left, last = bytes_max, 0
    for stored_event in page:
        references = payload_references.collect_references(
            [stored_event.event, stored_event.payload_ref]
        )
        new = [reference for sha256, reference in references.items() if sha256 not in contents]
        new_bytes = sum(int(reference.get("payload_bytes") or 0) for reference in new)
        if bytes_left < new_bytes <= bytes_max and contents:
            break
        for reference in new:
            content = await _read_content(services, reference, bytes_left)
            bytes_left -= 0 if content.content is None else content.bytes
            contents[content.sha256] = content
        last = stored_event.stream_version
    return list(contents.values()), last


async def _read_content(
    services: ApiServices, plain_reference: dict[str, Any], bytes_max: int
) -> KeptContent:
    """Read a payload of at most so many bytes."""
    reference = codec.convert_value(plain_reference, PayloadRef)
    data, left_out = await _stream_bytes(services.payloads, reference, bytes_max)
    if not left_out:
        return _show_content(reference.uri, reference.sha256, data)
    return KeptContent(
        name=reference.uri,
        sha256=reference.sha256,
        bytes=reference.payload_bytes,
        left_out=left_out,
    )


async def _stream_bytes(
    payloads: Payloads, reference: PayloadRef, bytes_max: int
) -> tuple[bytes, str]:
    """Return the bytes of a payload, or why it is left out."""
    if reference.payload_bytes > bytes_max:
        return b"", TOO_LARGE
    data = bytearray()
    try:
        async for piece in payloads.stream_payload(reference):
            data += piece
            if len(data) > bytes_max:
                return b"", TOO_LARGE
    except PayloadMissing:
        return b"", "missing"
    except PayloadCorrupt:
        return b"", "corrupt"
    except (NameRefused, ValueError):
        return b"", "refused"
    return bytes(data), ""


def _show_content(name: str, sha256: str, data: bytes) -> KeptContent:
    if redaction.mask_sealed_bytes(data) is not data:
        return KeptContent(name=name, sha256=sha256, bytes=len(data), left_out=SEALED)
    return KeptContent(
        name=name, sha256=sha256, bytes=len(data), content=base64.b64encode(data).decode()
    )


@get("/log-chunks", tags=["replay"])
async def list_log_chunks(
    services: Services,
    history: History,
    after: Annotated[str, QueryParameter(max_length=200)] = "",
    limit: Annotated[int, QueryParameter(ge=1, le=CHUNKS_MAX)] = CHUNKS_MAX,
    bytes_max: BytesMax = BYTES_MAX,
) -> LogContents:
    """Read chunks of the logs of an execution behind a name, as far as they fit the answer.

    The page ends before a chunk that would fit the next answer.
    """
    chunks = LogChunks(services, history.execution_id)
    names = [name.name for name in await chunks.list_names_behind(after, names_max=limit + 1)]
    contents = await _take_chunks(services, names[:limit], bytes_max)
    return LogContents(
        execution_id=history.execution_id,
        contents=contents,
        next_after=contents[-1].name if contents else after,
        has_more=len(names) > len(contents),
    )


async def _take_chunks(
    services: ApiServices, names: Sequence[str], bytes_max: int
) -> list[KeptContent]:
    """Return the first of the chunks, as far as they fit one answer."""
    contents: list[KeptContent] = []
    bytes_left = bytes_max
    for name in names:
        content = await _read_chunk(services, name)
        if bytes_left < content.bytes <= bytes_max and contents:
            break
        if content.bytes > bytes_left and not content.left_out:
            content = structs.replace(content, content=None, left_out=TOO_LARGE)
        bytes_left -= 0 if content.content is None else content.bytes
        contents.append(content)
    return contents


async def _read_chunk(services: ApiServices, name: str) -> KeptContent:
    data = await services.payloads.find_named(name, **services.tenant_scope)
    if data is None:
        return KeptContent(name=name, sha256="", bytes=0, left_out="missing")
    return _show_content(name, codec.digest_hex(data), data)


ROUTES = [
    Router(
        path="/replay",
        dependencies={"history": Provide(cuts.get_history_head)},
        route_handlers=[list_contents, list_log_chunks],
    )
]
