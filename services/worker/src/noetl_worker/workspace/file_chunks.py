"""Files of a checkout to the payload store and back, chunk by chunk."""

import os
from collections.abc import Awaitable, Callable, Iterable

from noetl_chassis.together import together
from noetl_contracts import locators
from noetl_contracts.payloads import PayloadRef
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.in_thread import in_thread
from noetl_worker.stores import TenantPayloads
from noetl_worker.workspace import file_content
from noetl_worker.workspace.checkout import Checkout
from noetl_worker.workspace.file_content import CHUNK_HEAD, FileContent

_MEDIA_TYPE = "application/octet-stream"
_CHUNKS_AT_ONCE = 8


async def fetch_file(
    checkout: Checkout, path: str, content: FileContent, payloads: TenantPayloads
) -> None:
    """Let a file of the checkout have this content; raises `ToolFailure` or `OSError`."""
    if await in_thread(checkout.is_current, path, content):
        return
    reusable = await in_thread(checkout.list_reusable_chunks, path, content)
    target = await in_thread(checkout.prepare_file, path, is_reused=bool(reusable))

    async def fetch_chunk(index: int) -> None:
        size = content.chunk_size(index)
        data = await payloads.read(_chunk_ref(content.chunks[index], size, payloads))
        await in_thread(
            file_content.write_chunk, target, content, index, data.removeprefix(CHUNK_HEAD)
        )

    await _run_for_each(
        fetch_chunk, (index for index in range(len(content.chunks)) if index not in reusable)
    )
    await in_thread(checkout.finish_file, path, content)


async def store_file(
    checkout: Checkout, path: str, content: FileContent, payloads: TenantPayloads
) -> None:
    """Store the chunks that the version before did not have; raises `ToolFailure`, `OSError`."""
    base = checkout.find_base(path)
    stored = set() if base is None else set(base.chunks)
    index_by_digest = {
        digest: index for index, digest in enumerate(content.chunks) if digest not in stored
    }
    descriptor = await in_thread(os.open, checkout.folder / path, os.O_RDONLY | os.O_NOFOLLOW)
    try:

        async def store_chunk(index: int) -> None:
            data = await in_thread(file_content.read_chunk, descriptor, content, index)
            ref = await payloads.store(CHUNK_HEAD + data, media_type=_MEDIA_TYPE)
            if ref.sha256 != content.chunks[index]:
                text = f"the file {path!r:.200} was written to after its task had ended"
                raise ToolFailure(failure("file_conflict", text, source="files"))

        await _run_for_each(store_chunk, index_by_digest.values())
    finally:
        await in_thread(os.close, descriptor)


def _chunk_ref(digest: str, size_bytes: int, payloads: TenantPayloads) -> PayloadRef:
    place = payloads.place
    return PayloadRef(
        uri=locators.payload(place.tenant_id, place.organization_id, digest),
        sha256=digest,
        media_type=_MEDIA_TYPE,
        payload_bytes=size_bytes + len(CHUNK_HEAD),
    )


async def _run_for_each(work: Callable[[int], Awaitable[None]], indexes: Iterable[int]) -> None:
    """Do the work for each index, a few at a time; the first error ends it."""
    waiting = iter(indexes)

    async def take_turns() -> None:
        for index in waiting:
            await work(index)

    async with together() as group:
        for _ in range(_CHUNKS_AT_ONCE):
            group.create_task(take_turns())
