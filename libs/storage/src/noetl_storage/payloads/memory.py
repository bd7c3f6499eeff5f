"""Payloads in memory: the reference adapter."""

from collections.abc import AsyncIterator

from noetl_contracts import codec
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef
from noetl_storage.payloads import checking, keys

_CHUNK_BYTES = 256 * 1024


class MemoryPayloads:
    """Keeps every object in one mapping by key."""

    def __init__(self) -> None:
        self.bytes_by_key: dict[str, bytes] = {}

    async def put(
        self,
        data: bytes | AsyncIterator[bytes],
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        media_type: str,
        row_count: int | None = None,
        schema_digest: str | None = None,
    ) -> PayloadRef:
        """Store content; storing it twice is storing it once."""
        whole = data if isinstance(data, bytes) else b"".join([chunk async for chunk in data])
        sha256 = codec.digest(whole)
        self.bytes_by_key[keys.content_key(tenant_id, organization_id, sha256)] = whole
        return keys.build_ref(
            tenant_id=tenant_id,
            organization_id=organization_id,
            sha256=sha256,
            payload_bytes=len(whole),
            media_type=media_type,
            row_count=row_count,
            schema_digest=schema_digest,
        )

    async def read(self, ref: PayloadRef) -> bytes:
        """Return content whose digest was checked."""
        data = self.bytes_by_key.get(keys.key_of(ref))
        if data is None:
            raise checking.missing(ref)
        return checking.checked(data, ref)

    async def stream(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """Yield content in pieces; the digest is checked before the last one is yielded."""
        data = await self.read(ref)
        for start in range(0, len(data), _CHUNK_BYTES):
            yield data[start : start + _CHUNK_BYTES]

    async def exists(self, ref: PayloadRef) -> bool:
        """Tell whether the content is stored."""
        return keys.key_of(ref) in self.bytes_by_key

    async def delete(self, ref: PayloadRef) -> None:
        """Remove content; removing what is not there is no error."""
        self.bytes_by_key.pop(keys.key_of(ref), None)

    async def put_named(
        self, name: str, data: bytes, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Write an object unless the name is taken; return the bytes that were there before."""
        key = keys.named_key(name, tenant_id, organization_id)
        before = self.bytes_by_key.get(key)
        if before is None:
            self.bytes_by_key[key] = data
        return before

    async def find_named(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Return an object by name, or None."""
        return self.bytes_by_key.get(keys.named_key(name, tenant_id, organization_id))

    async def list_names(
        self, prefix: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> list[str]:
        """Return the names under a prefix, in order."""
        keys.check_prefix(prefix)
        place = keys.named_prefix(tenant_id, organization_id)
        return sorted(
            key.removeprefix(place) for key in self.bytes_by_key if key.startswith(place + prefix)
        )
