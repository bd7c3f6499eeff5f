"""Bytes are compared with the digest that their reference promises, on every read."""

from collections.abc import AsyncIterator

from noetl_contracts import codec
from noetl_contracts.payloads import PayloadRef
from noetl_storage.errors import PayloadCorrupt, PayloadMissing


def checked(data: bytes, ref: PayloadRef) -> bytes:
    """Return the bytes when they are the promised ones; raises `PayloadCorrupt`."""
    if codec.digest(data) != ref.sha256:
        raise corrupt(ref)
    return data


async def checked_stream(chunks: AsyncIterator[bytes], ref: PayloadRef) -> AsyncIterator[bytes]:
    """Yield pieces, holding each back until the next one, and the last until the digest fits."""
    digest = codec.digester()
    held: bytes | None = None
    async for chunk in chunks:
        if held is not None:
            yield held
        digest.update(chunk)
        held = chunk
    if digest.hexdigest() != ref.sha256:
        raise corrupt(ref)
    if held is not None:
        yield held


def corrupt(ref: PayloadRef) -> PayloadCorrupt:
    """Name the object whose bytes are not the promised ones."""
    return PayloadCorrupt(f"the stored bytes of {ref.uri} do not have that digest")


def missing(ref: PayloadRef) -> PayloadMissing:
    """Name the object that is not there."""
    return PayloadMissing(f"nothing is stored under {ref.uri}")
