"""Reads a slice of a loop's collection: only the payload that holds it, decoded once a worker."""

from typing import Any

from noetl_contracts import codec
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_contracts.slicing import Form, ListPart, PartList, encoded_parts
from noetl_playbook import carried
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.stores import TenantPayloads

# A larger payload is cut into parts before it is read item by item.
WHOLE_BYTES_MAX = 8 * 1024 * 1024


async def read_items(
    reference: PayloadRef | None, form: Form, *, start: int, end: int, payloads: TenantPayloads
) -> list[Any]:
    """Return the items from `start` up to `end`; raises `ToolFailure`."""
    if form is Form.RANGE:
        return list(range(start, end))
    if reference is None:
        raise ToolFailure(failure("internal", "the command names no collection"))
    if form is Form.PARTS:
        manifest = codec.convert(await payloads.load(reference), PartList)
        return await _from_parts(manifest, start, end, payloads)
    if reference.payload_bytes > WHOLE_BYTES_MAX:
        return await _from_parts(await _recut(reference, form, payloads), start, end, payloads)
    data = await payloads.load(reference)
    rows = data if form is Form.LIST else carried.rows(str(form), data)
    if end > len(rows):
        text = f"the collection has {len(rows)} items and not {end}"
        raise ToolFailure(failure("internal", text))
    return rows[start:end]


async def _recut(reference: PayloadRef, form: Form, payloads: TenantPayloads) -> PartList:
    """Cut a large result into parts, once for all units of all workers."""
    name = f"slices/{reference.sha256}"
    known = await payloads.load_named(name)
    if known is not None:
        return codec.convert(known, PartList)
    data = await payloads.load(reference)
    rows = data if form is Form.LIST else carried.rows(str(form), data)
    parts: list[ListPart] = []
    for start, end, part in encoded_parts(rows):
        ref = await payloads.store(part, media_type=JSON_MEDIA_TYPE, row_count=end - start)
        parts.append(ListPart(start=start, end=end, ref=ref))
    written = codec.encode(PartList(total=len(rows), parts=parts))
    # Whoever was first has cut the same rows at the same places.
    return codec.decode_as(await payloads.put_named(name, written) or written, PartList)


async def _from_parts(
    manifest: PartList, start: int, end: int, payloads: TenantPayloads
) -> list[Any]:
    found: list[Any] = []
    for part in manifest.parts:
        if part.start < end and part.end > start:
            items = await payloads.load(part.ref)
            found += items[max(0, start - part.start) : end - part.start]
    return found
