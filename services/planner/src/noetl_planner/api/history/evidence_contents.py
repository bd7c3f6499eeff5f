"""The bytes behind a history, for evidence that is checked elsewhere: payloads and chunks of logs.

They are given as they are kept, so that their digests can be computed again. What holds a sealed
value is left out: masked, it would not have its digest.
"""

import base64
from typing import Annotated, Any

from litestar import Router, get
from litestar.di import Provide
from litestar.params import QueryParameter
from msgspec import Struct

from noetl_chassis import redaction
from noetl_contracts import codec
from noetl_contracts.payloads import PayloadRef
from noetl_planner.api.history import cuts
from noetl_planner.api.history.cuts import History
from noetl_planner.api.http.services import ApiServices, Services
from noetl_planner.api.watch.log_chunks import LogChunks
from noetl_replay import payload_references
from noetl_storage.ports.errors import NameRefused, PayloadCorrupt, PayloadMissing

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
    contents: dict[str, KeptContent] = {}
    left, last = bytes_max, after
    for stored_event in page:
        references = payload_references.collect_references(
            [stored_event.event, stored_event.payload_ref]
        )
        new = [reference for sha256, reference in references.items() if sha256 not in contents]
        wanted = sum(int(reference.get("payload_bytes") or 0) for reference in new)
        if left < wanted <= bytes_max and contents:
            break
        for reference in new:
            content = await _read_content(services, reference, left)
            left -= 0 if content.content is None else content.bytes
            contents[content.sha256] = content
        last = stored_event.stream_version
    return PayloadContents(
        execution_id=history.execution_id,
        contents=list(contents.values()),
        next_after=last,
        has_more=last < history.version and bool(page),
    )


async def _read_content(
    services: ApiServices, found: dict[str, Any], bytes_max: int
) -> KeptContent:
    """Read a payload of at most so many bytes."""
    reference = codec.convert_value(found, PayloadRef)
    data = bytearray()
    left_out = TOO_LARGE if reference.payload_bytes > bytes_max else ""
    if not left_out:
        try:
            async for piece in services.payloads.stream_payload(reference):
                data += piece
                if len(data) > bytes_max:
                    left_out = TOO_LARGE
                    break
        except PayloadMissing:
            left_out = "missing"
        except PayloadCorrupt:
            left_out = "corrupt"
        except (NameRefused, ValueError):
            left_out = "refused"
    if left_out:
        return KeptContent(
            name=reference.uri,
            sha256=reference.sha256,
            bytes=reference.payload_bytes,
            left_out=left_out,
        )
    return _show_content(reference.uri, reference.sha256, bytes(data))


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
    names = [
        name.name
        for name in await LogChunks(services, history.execution_id).list_names()
        if name.name > after
    ]
    contents: list[KeptContent] = []
    left = bytes_max
    for name in names[:limit]:
        data = await services.payloads.find_named(name, **services.tenant_scope)
        if data is None:
            contents.append(KeptContent(name=name, sha256="", bytes=0, left_out="missing"))
            continue
        content = _show_content(name, codec.digest_hex(data), data)
        if left < content.bytes <= bytes_max and contents:
            break
        if content.content is not None and content.bytes > left:
            content = KeptContent(
                name=name, sha256=content.sha256, bytes=content.bytes, left_out=TOO_LARGE
            )
        left -= 0 if content.content is None else content.bytes
        contents.append(content)
    return LogContents(
        execution_id=history.execution_id,
        contents=contents,
        next_after=contents[-1].name if contents else after,
        has_more=len(names) > len(contents),
    )


ROUTES = [
    Router(
        path="/replay",
        dependencies={"history": Provide(cuts.get_history_head)},
        route_handlers=[list_contents, list_log_chunks],
    )
]
