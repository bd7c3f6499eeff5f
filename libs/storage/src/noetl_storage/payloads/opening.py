"""Objects as they were before they were sealed; those that never were stay as they are."""

import asyncio
from collections.abc import AsyncIterator

from noetl_contracts.errors import PayloadKeyUnknown
from noetl_contracts.payloads import PayloadRef
from noetl_storage.errors import PayloadCorrupt
from noetl_storage.payload_ports import SEAL_MAGIC, Opening, Owner, Seals
from noetl_storage.payloads import checking


def opened(data: bytes, *, owner: Owner, name: str, seals: Seals | None) -> bytes:
    """Open a whole object; raises `PayloadSealBroken`, `PayloadKeyUnknown`."""
    if not data.startswith(SEAL_MAGIC):
        return data
    if seals is None:
        raise keyless(owner)
    opening = seals.open(owner, name)
    return opening.update(data) + opening.finish()


async def opened_stream(
    pieces: AsyncIterator[bytes], *, owner: Owner, name: str, seals: Seals
) -> AsyncIterator[bytes]:
    """Open an object piece by piece; raises `PayloadSealBroken`, `PayloadKeyUnknown`."""
    head, opening, is_plain = b"", None, False
    async for piece in pieces:
        if opening is None and not is_plain:
            head += piece
            if len(head) < len(SEAL_MAGIC):
                continue
            is_plain = not head.startswith(SEAL_MAGIC)
            opening = None if is_plain else seals.open(owner, name)
            piece, head = head, b""  # noqa: PLW2901 - the first pieces are taken together
        # Who holds the tenant's key may have to be asked for it.
        if ready := await asyncio.to_thread(_turned, opening, piece):
            yield ready
    if rest := head + (b"" if opening is None else opening.finish()):
        yield rest


async def plain_stream(
    pieces: AsyncIterator[bytes], *, owner: Owner, ref: PayloadRef
) -> AsyncIterator[bytes]:
    """Check an object where nobody has keys; raises `PayloadCorrupt`, `PayloadKeyUnknown`."""
    head = bytearray()

    async def watched() -> AsyncIterator[bytes]:
        async for piece in pieces:
            if len(head) < len(SEAL_MAGIC):
                head.extend(piece[: len(SEAL_MAGIC)])
            yield piece

    try:
        async for piece in checking.checked_stream(watched(), ref):
            yield piece
    except PayloadCorrupt as failure:
        if head.startswith(SEAL_MAGIC):
            raise keyless(owner) from failure
        raise


def _turned(opening: Opening | None, piece: bytes) -> bytes:
    return piece if opening is None else opening.update(piece)


def keyless(owner: Owner) -> PayloadKeyUnknown:
    """Say that an object is sealed and nobody here has keys."""
    return PayloadKeyUnknown(
        f"a payload of {owner.tenant_id}/{owner.organization_id} is sealed, and this process has "
        "no keys for payloads: set PAYLOAD_SEAL_KEY or PAYLOAD_SEAL_FILE as where it was written"
    )
