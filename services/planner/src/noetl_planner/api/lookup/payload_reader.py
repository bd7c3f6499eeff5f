"""Reading a payload for an answer, and showing it by windows."""

import asyncio
import binascii
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from noetl_contracts import codec, locators, spread_table
from noetl_contracts.errors import LocatorError, PayloadKeyUnknown
from noetl_contracts.payloads import (
    ARROW_MEDIA_TYPE,
    PARQUET_MEDIA_TYPE,
    PayloadRef,
    is_packed,
)
from noetl_contracts.spread_table import SPREAD_MEDIA_TYPE
from noetl_planner.api.http import problems
from noetl_planner.api.http.problems import ApiError
from noetl_planner.api.http.services import ApiServices, RequestScope
from noetl_storage.arrow import result_values
from noetl_storage.ports.errors import NameRefused, PayloadCorrupt, PayloadMissing
from noetl_storage.process.lazy_import import LazyModule
from noetl_storage.size_limits.refusals import PayloadTooLarge, PayloadUnreadable

if TYPE_CHECKING:
    from noetl_storage.arrow import encoding
else:
    encoding = LazyModule("noetl_storage.arrow.encoding")

RESOLVED_BYTES_MAX = 16 * 1024 * 1024
# A Parquet file is read to its end for its footer; a longer one, or footer, has no schema here.
FOOTED_BYTES_MAX = 64 * 1024 * 1024
FOOTER_BYTES_MAX = 4 * 1024 * 1024
# What is longer, or packed, is read beside the event loop, which has leases to keep.
_AT_ONCE_BYTES = 64 * 1024
WINDOW_MAX = 10_000
COLUMNS_MAX = 500
# What keeps a schema from being shown; the value itself is refused with the reason.
_SCHEMA_FAULTS = (
    ApiError,
    LocatorError,
    NameRefused,
    PayloadCorrupt,
    PayloadKeyUnknown,
    PayloadMissing,
    PayloadUnreadable,
    binascii.Error,
    msgspec.DecodeError,
    msgspec.ValidationError,
)


class Window(Struct, frozen=True, kw_only=True):
    """A value; of a list, or of a mapping's rows or results, the part that was asked for."""

    data: Any
    total: int | None = None
    offset: int | None = None
    has_next: bool = False


class PayloadColumn(Struct, frozen=True, kw_only=True):
    """A column of a stored table; `type` is Arrow's name, or `json` for values of many types."""

    name: str
    type: str
    nullable: bool


class PayloadSchema(Struct, frozen=True, kw_only=True):
    """The first columns of a stored table; `total` counts all of them."""

    columns: list[PayloadColumn]
    total: int


def view_window(value: Any, *, offset: int, limit: int) -> Window:
    """Show a value, row sets by windows."""
    if isinstance(value, list):
        data: Any = value[offset : offset + limit]
        return _build_window(data, total=len(value), offset=offset, limit=limit)
    for key in ("rows", "results"):
        if isinstance(value, dict) and isinstance(value.get(key), list):
            whole = value[key]
            same = {name for name, item in value.items() if item is whole or item == whole}
            data = {**value, **dict.fromkeys(same, whole[offset : offset + limit])}
            return _build_window(data, total=len(whole), offset=offset, limit=limit)
    return Window(data=value)


def _build_window(data: Any, *, total: int, offset: int, limit: int) -> Window:
    return Window(data=data, total=total, offset=offset, has_next=offset + limit < total)


class _ReadAllowance:
    """What one answer may still hold, stored and unpacked: all its parts count."""

    def __init__(self, services: ApiServices) -> None:
        self._payloads = services.payloads
        self._stored = self._unpacked = RESOLVED_BYTES_MAX

    async def read_bytes(self, reference: PayloadRef) -> bytes:
        """Read stored bytes; raises an `ApiError` when there are too many."""
        data = bytearray()
        async for piece in self._payloads.stream_payload(reference):
            data += piece
            if len(data) > self._stored:
                raise _build_payload_too_large_error(
                    f"the payload exceeds {RESOLVED_BYTES_MAX} bytes"
                )
        self._stored -= len(data)
        return bytes(data)

    async def read_rows(self, part: PayloadRef) -> bytes:
        """Read a part whose rows fit the answer; raises `PayloadTooLarge`."""
        data = await self.read_bytes(part)
        self._unpacked -= await asyncio.to_thread(_measure_rows, data, self._unpacked)
        return data


def _measure_rows(data: bytes, bytes_max: int) -> int:
    table = encoding.read_table(data, bytes_max=bytes_max)
    return encoding.weigh_rows(table, bytes_max=bytes_max)


async def _decode_payload(data: bytes) -> Any:
    if len(data) <= _AT_ONCE_BYTES and not is_packed(data):
        return encoding.decode_payload(data)
    return await asyncio.to_thread(encoding.decode_payload, data, bytes_max=RESOLVED_BYTES_MAX)


def _build_payload_too_large_error(detail: str) -> ApiError:
    return ApiError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        code="payload_too_large",
        detail=detail,
        hint="read it from the payload store",
    )


def _check_owner(scope: RequestScope, reference: PayloadRef) -> None:
    """Raise a 404 for content of another organization."""
    try:
        segments = locators.parse_locator(reference.uri).segments
    except LocatorError as failure:
        raise problems.build_bad_request_error(str(failure)) from failure
    if segments[:4] != ("tenant", scope.tenant_id, "org", scope.organization_id):
        raise problems.build_not_found_error(f"no payload is stored under {reference.uri}")


async def read_payload(services: ApiServices, reference: PayloadRef) -> Any:
    """Read the value of a payload, at most what one answer may hold; raises an `ApiError`."""
    _check_owner(services, reference)
    room = _ReadAllowance(services)
    try:
        value = await _decode_payload(await room.read_bytes(reference))
        return await result_values.gather_rows(value, reference, room.read_rows)
    except NameRefused as failure:
        raise problems.build_bad_request_error(str(failure)) from failure
    except PayloadMissing as failure:
        raise problems.build_not_found_error(
            f"no payload is stored under {reference.uri}"
        ) from failure
    except PayloadKeyUnknown as failure:
        raise ApiError(
            HTTPStatus.BAD_GATEWAY,
            code="payload_sealed",
            detail=str(failure),
            hint="give the planner the same keys for payloads as the workers",
        ) from failure
    except PayloadCorrupt as failure:
        raise ApiError(
            HTTPStatus.BAD_GATEWAY,
            code="payload_corrupt",
            detail=str(failure),
            hint="restore the object from a backup; its digest does not match",
        ) from failure
    except PayloadTooLarge as failure:
        raise _build_payload_too_large_error(
            f"the payload {reference.sha256} is too large: {failure}"
        ) from failure
    except (msgspec.DecodeError, PayloadUnreadable) as failure:
        raise ApiError(
            HTTPStatus.UNPROCESSABLE_ENTITY,
            code="payload_not_json",
            detail=f"the payload {reference.sha256} is not JSON",
            hint="read it from the payload store",
        ) from failure


async def read_payload_schema(
    services: ApiServices, reference: PayloadRef | None
) -> PayloadSchema | None:
    """Read the schema of a stored table, and no rows; None where there is none to vouch for.

    Of an Arrow stream only the head is read, of a Parquet file the footer is kept: the reference
    has the digest of the schema. A table in many objects has the schema in its manifest.
    """
    if reference is None:
        return None
    try:
        _check_owner(services, reference)
        if reference.media_type == SPREAD_MEDIA_TYPE:
            schema = await _read_spread_schema(services, reference)
        elif reference.media_type == ARROW_MEDIA_TYPE:
            schema = await _read_stream_schema(services, reference)
        elif reference.media_type == PARQUET_MEDIA_TYPE:
            schema = await _read_footer_schema(services, reference)
        else:
            return None
    except _SCHEMA_FAULTS:
        return None
    return None if schema is None else _view_schema(schema)


async def _read_stream_schema(services: ApiServices, reference: PayloadRef) -> Any | None:
    head, schema = bytearray(), None
    pieces = cast("AsyncGenerator[bytes]", services.payloads.stream_payload(reference))
    async with aclosing(pieces):
        async for piece in pieces:
            head += piece
            schema = encoding.find_schema(bytes(head))
            if schema is not None or len(head) > RESOLVED_BYTES_MAX:
                break
    is_sound = schema is not None and encoding.digest_schema(schema) == reference.schema_digest
    return schema if is_sound else None


async def _read_footer_schema(services: ApiServices, reference: PayloadRef) -> Any | None:
    is_compressed = reference.codec is not None
    bytes_max = RESOLVED_BYTES_MAX if is_compressed else FOOTED_BYTES_MAX
    if reference.schema_digest is None or reference.payload_bytes > bytes_max:
        return None
    tail, count_bytes = bytearray(), 0
    pieces = cast("AsyncGenerator[bytes]", services.payloads.stream_payload(reference))
    async with aclosing(pieces):
        async for piece in pieces:
            tail += piece
            count_bytes += len(piece)
            if count_bytes > bytes_max:
                return None
            if not is_compressed and len(tail) > 2 * FOOTER_BYTES_MAX:
                del tail[:-FOOTER_BYTES_MAX]
    schema = await asyncio.to_thread(_find_footer_schema, bytes(tail))
    return schema if encoding.digest_schema(schema) == reference.schema_digest else None


def _find_footer_schema(data: bytes) -> Any:
    """Read the footer of a file, or of a packed one that is there as a whole."""
    for magic, compression in encoding.PACKINGS:
        if data.startswith(magic):
            data = encoding.expand_bytes(data, compression, bytes_max=RESOLVED_BYTES_MAX)
            break
    return encoding.find_footer_schema(data[-FOOTER_BYTES_MAX:])


async def _read_spread_schema(services: ApiServices, reference: PayloadRef) -> Any | None:
    manifest = codec.decode_json(await _ReadAllowance(services).read_bytes(reference))
    spread = spread_table.find_spread_table(manifest, owner=reference)
    return None if spread is None else encoding.find_schema(b64decode(spread.schema))


def _view_schema(schema: Any) -> PayloadSchema:
    columns = encoding.describe_columns(schema)
    return PayloadSchema(
        columns=[
            PayloadColumn(name=name, type=kind, nullable=is_nullable)
            for name, kind, is_nullable in columns[:COLUMNS_MAX]
        ],
        total=len(columns),
    )
