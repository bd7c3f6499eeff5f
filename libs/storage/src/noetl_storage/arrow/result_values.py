"""The value behind a reference, its rows gathered when they lie in many objects."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from noetl_contracts import spread_table
from noetl_contracts.errors import LocatorError
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.json_values import DEPTH_MAX, is_nested_deeper
from noetl_contracts.payloads import (
    INLINE_BYTES_MAX,
    JSON_MEDIA_TYPE,
    RESULT_INLINE_BYTES_MAX,
    PayloadRef,
    ResultEnvelope,
)
from noetl_contracts.spread_table import SPREAD_MEDIA_TYPE
from noetl_storage.ports.ledger_ports import Payloads
from noetl_storage.process.lazy_import import LazyModule
from noetl_storage.size_limits.refusals import DECODED_BYTES_MAX, PayloadUnreadable

if TYPE_CHECKING:
    from noetl_storage.arrow import arrow_values, encoding
else:
    arrow_values = LazyModule("noetl_storage.arrow.arrow_values")
    encoding = LazyModule("noetl_storage.arrow.encoding")

Read = Callable[[PayloadRef], Awaitable[bytes]]


async def load_value(
    read_bytes: Read, ref: PayloadRef, *, bytes_max: int = DECODED_BYTES_MAX
) -> Any:
    """Return the decoded value of a reference; `read_bytes` gives stored bytes.

    Raises `PayloadUnreadable`, what `read_bytes` raises, and `msgspec.DecodeError` for damaged
    JSON.
    """
    return await gather_rows(
        encoding.decode_payload(await read_bytes(ref), bytes_max=bytes_max), ref, read_bytes
    )


async def gather_rows(value: Any, ref: PayloadRef, read_bytes: Read) -> Any:
    """Put the rows of a payload's parts in the place of their marker; raises as `load_value`."""
    if ref.media_type != SPREAD_MEDIA_TYPE:
        return value
    task = spread_table.find_spread_task(value)
    if task is None:
        return value
    try:
        spread = spread_table.find_spread_table(value, owner=ref)
    except (LocatorError, msgspec.ValidationError) as failure:
        raise PayloadUnreadable(f"the parts of {ref.sha256} cannot be used: {failure}") from failure
    assert spread is not None, "the task was found by its marker"
    rows: list[Any] = []
    for part in spread.parts:
        # Large tables would keep the event loop from its heartbeats.
        rows += await asyncio.to_thread(read_table_rows, await read_bytes(part))
    return spread_table.replace_marker(value, task, rows)


def read_table_rows(data: bytes) -> list[dict[str, Any]]:
    """Read the rows of a bare table as JSON values; raises `PayloadUnreadable`."""
    table = encoding.read_table(data)
    table_rows: list[dict[str, Any]] = []
    try:
        for batch in table.to_batches():
            table_rows += arrow_values.batch_to_rows(batch, [""] * batch.num_columns)
    except arrow_values.ValueWithoutJson as failure:
        raise PayloadUnreadable(str(failure)) from failure
    return table_rows


# Gives the decoded value of a reference.
Load = Callable[[PayloadRef], Awaitable[Any]]


class KeepContent(Protocol):
    """Stores content of one owner; it is durable when this returns."""

    async def __call__(
        self, data: bytes, *, media_type: str, row_count: int | None = None
    ) -> PayloadRef:
        """Return the reference to the content."""


def build_keep(
    payloads: Payloads, *, tenant_id: TenantId, organization_id: OrganizationId
) -> KeepContent:
    """Store into a payload store, for one owner."""

    async def keep_content(
        data: bytes, *, media_type: str, row_count: int | None = None
    ) -> PayloadRef:
        return await payloads.put_payload(
            data,
            tenant_id=tenant_id,
            organization_id=organization_id,
            media_type=media_type,
            row_count=row_count,
        )

    return keep_content


def build_load(payloads: Payloads) -> Load:
    """Read from a payload store; raises as its `read` does, and `PayloadUnreadable`."""

    async def load_content(reference: PayloadRef) -> Any:
        try:
            return await load_value(payloads.read_payload, reference)
        except msgspec.DecodeError as failure:
            text = f"the payload {reference.sha256} is no result: {failure}"
            raise PayloadUnreadable(text) from failure

    return load_content


async def build_result_envelope(
    keep: KeepContent,
    data: bytes,
    *,
    inline: Callable[[], Mapping[str, Any]],
    beside: Mapping[str, Any],
    status: str = "ok",
    row_count: int | None = None,
) -> ResultEnvelope:
    """Return the envelope of a result whose kept form is `data`, encoded as JSON.

    `inline` gives the context of one that travels, `beside` is that of a stored one. What is not
    large is inline to the playbook also when it is stored. Raises what `keep_content` raises.
    """
    if len(data) <= RESULT_INLINE_BYTES_MAX:
        travelling = dict(inline())
        if not is_nested_deeper(travelling, DEPTH_MAX):
            return ResultEnvelope(status=status, context=travelling)
    reference = await keep(data, media_type=JSON_MEDIA_TYPE, row_count=row_count)
    inline_mark = {"is_inline": True} if len(data) <= INLINE_BYTES_MAX else {}
    return ResultEnvelope(status=status, reference=reference, context={**beside, **inline_mark})


async def load_result(load: Load, envelope: ResultEnvelope | None) -> Any:
    """Return the kept form of a stored result; raises what `load_content` raises."""
    if envelope is None:
        return {}
    if envelope.reference is None:
        return envelope.context.get("data", {})
    return await load(envelope.reference)


async def load_stored_result(load: Load, envelope: ResultEnvelope | None) -> dict[str, Any]:
    """Return what of a result is stored, by digest: nothing for one that travels."""
    if envelope is None or envelope.reference is None:
        return {}
    return {envelope.reference.sha256: await load(envelope.reference)}
