"""Files of a checkout to the payload store and back, chunk by chunk."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from noetl_chassis.blocking_work import run_in_thread
from noetl_chassis.task_group import open_task_group
from noetl_contracts import locators
from noetl_contracts.execution_files import CHUNK_HEAD, CHUNK_MEDIA_TYPE, FileContent
from noetl_contracts.payloads import PayloadRef
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.workspace import folder_files
from noetl_worker.workspace.checkout import Checkout

if TYPE_CHECKING:
    from noetl_worker.payloads.tenant_payloads import TenantPayloads

T = TypeVar("T")

_FILES_AT_ONCE = 8
_CHUNKS_AT_ONCE = 8


async def fetch_files(
    checkout: Checkout, contents: Mapping[str, FileContent], payloads: "TenantPayloads"
) -> None:
    """Let files of the checkout have these contents; raises `ToolFailure` or `OSError`."""
    outdated = await run_in_thread(checkout.list_outdated, contents)
    turns = asyncio.Semaphore(_CHUNKS_AT_ONCE)

    async def fetch_one(path: str) -> None:
        await _fetch_file(checkout, path, contents[path], payloads, turns)

    await _run_for_each(fetch_one, outdated)


async def store_files(
    checkout: Checkout, contents: Mapping[str, FileContent], payloads: "TenantPayloads"
) -> None:
    """Store the chunks that the version before did not have; raises `ToolFailure`, `OSError`."""
    turns = asyncio.Semaphore(_CHUNKS_AT_ONCE)

    async def store_one(path: str) -> None:
        await _store_file(checkout, path, contents[path], payloads, turns)

    await _run_for_each(store_one, contents)


async def _fetch_file(
    checkout: Checkout,
    path: str,
    content: FileContent,
    payloads: "TenantPayloads",
    turns: asyncio.Semaphore,
) -> None:
    reusable = await run_in_thread(checkout.list_reusable_chunks, path, content)
    descriptor = await run_in_thread(checkout.begin_file, path, is_reused=bool(reusable))

    async def fetch_chunk(index: int) -> None:
        async with turns:
            size = content.get_chunk_size(index)
            data = await payloads.read_payload(
                _build_chunk_ref(content.chunks[index], size, payloads)
            )
            chunk = data.removeprefix(CHUNK_HEAD)
            await run_in_thread(folder_files.write_chunk, descriptor, content, index, chunk)

    try:
        await _run_for_each(
            fetch_chunk, (index for index in range(len(content.chunks)) if index not in reusable)
        )
        await run_in_thread(checkout.finish_file, path, content, descriptor)
    finally:
        os.close(descriptor)


async def _store_file(
    checkout: Checkout,
    path: str,
    content: FileContent,
    payloads: "TenantPayloads",
    turns: asyncio.Semaphore,
) -> None:
    base = checkout.find_base(path)
    stored_chunks = set() if base is None else set(base.chunks)
    index_by_digest = {
        digest: index for index, digest in enumerate(content.chunks) if digest not in stored_chunks
    }
    with checkout.open_file(path) as descriptor:

        async def store_chunk(index: int) -> None:
            async with turns:
                data = await run_in_thread(folder_files.read_chunk, descriptor, content, index)
                ref = await payloads.store_payload(CHUNK_HEAD + data, media_type=CHUNK_MEDIA_TYPE)
            if ref.sha256 != content.chunks[index]:
                text = f"the file {path!r:.200} was written to after its task had ended"
                raise ToolFailure(build_error("file_conflict", text, source="files"))

        await _run_for_each(store_chunk, index_by_digest.values())


def _build_chunk_ref(digest: str, size_bytes: int, payloads: "TenantPayloads") -> PayloadRef:
    place = payloads.payload_owner
    return PayloadRef(
        uri=locators.build_payload_locator(place.tenant_id, place.organization_id, digest),
        sha256=digest,
        media_type=CHUNK_MEDIA_TYPE,
        payload_bytes=size_bytes + len(CHUNK_HEAD),
    )


async def _run_for_each(work: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Do the work for each item, a few at a time; the first error ends it."""
    remaining_items = iter(items)

    async def take_turns() -> None:
        for item in remaining_items:
            await work(item)

    async with open_task_group() as group:
        for _ in range(_FILES_AT_ONCE):
            group.create_task(take_turns())
