"""Bytes are compared with the digest that their reference promises, on every read."""

import asyncio
from collections.abc import AsyncIterator

from noetl_contracts import codec
from noetl_contracts.errors import PayloadKeyUnknown
from noetl_contracts.payloads import PayloadRef
from noetl_storage.ports.errors import PayloadCorrupt, PayloadMissing
from noetl_storage.ports.payload_ports import SEAL_MAGIC, ObjectSeals, ObjectUnsealer, Owner


def check_digest(data: bytes, ref: PayloadRef) -> bytes:
    """Return the bytes when they are the promised ones; raises `PayloadCorrupt`."""
    if codec.digest_hex(data) != ref.sha256:
        raise build_corrupt_error(ref)
    return data


async def check_stream_digest(
    chunks: AsyncIterator[bytes], ref: PayloadRef
) -> AsyncIterator[bytes]:
    """Yield pieces, holding each back until the next one, and the last until the digest fits."""
    digest = codec.start_digest()
    pending_chunk: bytes | None = None
    async for chunk in chunks:
        if pending_chunk is not None:
            yield pending_chunk
        digest.update(chunk)
        pending_chunk = chunk
    if digest.hexdigest() != ref.sha256:
        raise build_corrupt_error(ref)
    if pending_chunk is not None:
        yield pending_chunk


def build_corrupt_error(ref: PayloadRef) -> PayloadCorrupt:
    """Name the object whose bytes are not the promised ones."""
    return PayloadCorrupt(f"the stored bytes of {ref.uri} do not have that digest")


def build_missing_error(ref: PayloadRef) -> PayloadMissing:
    """Name the object that is not there."""
    return PayloadMissing(f"nothing is stored under {ref.uri}")


def unseal_object(data: bytes, *, owner: Owner, name: str, seals: ObjectSeals | None) -> bytes:
    """Open a whole object; raises `PayloadSealBroken`, `PayloadKeyUnknown`."""
    if not data.startswith(SEAL_MAGIC):
        return data
    if seals is None:
        raise build_keyless_error(owner)
    opening = seals.start_unsealing(owner, name)
    return opening.unseal_bytes(data) + opening.finish_unsealing()


async def unseal_stream(
    pieces: AsyncIterator[bytes], *, owner: Owner, name: str, seals: ObjectSeals
) -> AsyncIterator[bytes]:
    """Open an object piece by piece; raises `PayloadSealBroken`, `PayloadKeyUnknown`."""
    head, opening, is_plain = b"", None, False
    async for piece in pieces:
        if opening is None and not is_plain:
            head += piece
            if len(head) < len(SEAL_MAGIC):
                continue
            is_plain = not head.startswith(SEAL_MAGIC)
            opening = None if is_plain else seals.start_unsealing(owner, name)
            piece, head = head, b""  # noqa: PLW2901 - the first pieces are taken together
        # Who holds the tenant's key may have to be asked for it.
        if opened_piece := await asyncio.to_thread(_unseal_piece, opening, piece):
            yield opened_piece
    if last_piece := head + (b"" if opening is None else opening.finish_unsealing()):
        yield last_piece


async def check_plain_stream(
    pieces: AsyncIterator[bytes], *, owner: Owner, ref: PayloadRef
) -> AsyncIterator[bytes]:
    """Check an object where nobody has keys; raises `PayloadCorrupt`, `PayloadKeyUnknown`."""
    head = bytearray()

    async def watch_head() -> AsyncIterator[bytes]:
        async for piece in pieces:
            if len(head) < len(SEAL_MAGIC):
                head.extend(piece[: len(SEAL_MAGIC)])
            yield piece

    try:
        async for piece in check_stream_digest(watch_head(), ref):
            yield piece
    except PayloadCorrupt as failure:
        if head.startswith(SEAL_MAGIC):
            raise build_keyless_error(owner) from failure
        raise


def _unseal_piece(opening: ObjectUnsealer | None, piece: bytes) -> bytes:
    return piece if opening is None else opening.unseal_bytes(piece)


def build_keyless_error(owner: Owner) -> PayloadKeyUnknown:
    """Say that an object is sealed and nobody here has keys."""
    return PayloadKeyUnknown(
        f"a payload of {owner.tenant_id}/{owner.organization_id} is sealed, and this process has "
        "no keys for payloads: set PAYLOAD_SEAL_KEY or PAYLOAD_SEAL_FILE as where it was written"
    )
