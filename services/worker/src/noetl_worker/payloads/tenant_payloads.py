"""Payloads of one tenant: stored before they are reported, remembered while they are read."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import Struct

from noetl_chassis.blocking_work import load_modules
from noetl_chassis.observability import instruments, names
from noetl_contracts import codec, locators
from noetl_contracts.errors import Permanent, Retryable
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.lru_cache import LruCache
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef, is_packed
from noetl_storage.arrow import result_values
from noetl_storage.arrow.result_values import Read
from noetl_storage.ports.errors import PayloadMissing
from noetl_storage.ports.ledger_ports import Payloads
from noetl_storage.process.lazy_import import LazyModule
from noetl_storage.size_limits.refusals import PayloadUnreadable
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.payloads import task_timeout
from noetl_worker.payloads.memory_estimate import estimate_memory
from noetl_worker.payloads.payload_retry import retry_store_call

_ENCODING = "noetl_storage.arrow.encoding"
if TYPE_CHECKING:
    from noetl_storage.arrow import encoding
else:
    encoding = LazyModule(_ENCODING)

T = TypeVar("T")


class PayloadCache:
    """Decoded payloads by tenant and digest, bounded by the memory that they take.

    The latest one may take more: rows weigh several times what they are stored as, and a loop over
    a large collection reads it again for each item.
    """

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._value_by_key: LruCache[str, Any] = LruCache(weight_max=bytes_max)
        # What someone is reading: many units want the same collection at the same time.
        self.busy: dict[str, asyncio.Event] = {}

    def find_value(self, key: str) -> Any:
        """Return a value, or None when it is not here."""
        return self._value_by_key.find_value(key)

    def forget_value(self, key: str) -> None:
        """Drop a value."""
        self._value_by_key.drop_value(key)

    def keep_value(self, key: str, value: Any, *, size_bytes: int) -> None:
        """Keep a value that is stored in so many bytes, forgetting what was used longest ago."""
        if size_bytes > self._bytes_max or key in self._value_by_key:
            return
        self._value_by_key.keep_value(key, value, weight=max(size_bytes, estimate_memory(value)))


class PayloadOwner(Struct, frozen=True, kw_only=True):
    """Whose payloads are meant."""

    tenant_id: TenantId
    organization_id: OrganizationId


class TenantPayloads:
    """The payload store as one command sees it; every method raises `ToolFailure`."""

    def __init__(self, payloads: Payloads, *, place: PayloadOwner, cache: PayloadCache) -> None:
        self._payloads = payloads
        self._tenant_scope = place
        self._cache = cache

    @property
    def payload_owner(self) -> PayloadOwner:
        """Return whose payloads these are."""
        return self._tenant_scope

    async def load_value(self, ref: PayloadRef) -> Any:
        """Return the decoded JSON of a reference."""
        cache, key = self._cache, self._build_cache_key(ref.sha256)
        if (other_read_ended := cache.busy.get(key)) is not None:
            with task_timeout.track_store_call() as asking:
                # How another task's reading goes is nothing that this one does.
                asking.is_away = True
                await other_read_ended.wait()
        value = cache.find_value(key)
        _count_cache_read(is_hit=value is not None)
        if value is not None:
            _count_bytes(ref.payload_bytes, tier="memory", operation="read")
            return value
        cache.busy[key] = read_ended = asyncio.Event()
        try:
            return await self._read_value(ref)
        finally:
            cache.busy.pop(key, None)
            read_ended.set()

    async def load_named(self, name: str) -> Any:
        """Return the decoded JSON of a named object, or None when there is none."""
        key = self._build_cache_key(name)
        cached_value = self._cache.find_value(key)
        if cached_value is not None:
            return cached_value
        data = await self.find_named(name)
        if data is None:
            return None
        value = codec.decode_json(data)
        self._cache.keep_value(key, value, size_bytes=len(data))
        return value

    def _build_cache_key(self, name: str) -> str:
        """Name what is remembered: what one organization has read is not there for another."""
        return f"{self._tenant_scope.tenant_id}/{self._tenant_scope.organization_id}/{name}"

    async def _read_value(self, ref: PayloadRef) -> Any:
        data = await self.read_payload(ref)
        value = await gather_spread(await decode_payload(data, ref), ref, self.read_payload)
        size_bytes = max(len(data), ref.payload_bytes)
        self._cache.keep_value(self._build_cache_key(ref.sha256), value, size_bytes=size_bytes)
        return value

    async def store_payload(
        self,
        data: bytes,
        *,
        media_type: str,
        row_count: int | None = None,
        schema_digest: str | None = None,
    ) -> PayloadRef:
        """Store content; it is durable when this returns."""
        _count_bytes(len(data), tier="store", operation="write")
        return await _call_store(
            lambda: self._payloads.put_payload(
                data,
                tenant_id=self._tenant_scope.tenant_id,
                organization_id=self._tenant_scope.organization_id,
                media_type=media_type,
                row_count=row_count,
                schema_digest=schema_digest,
            )
        )

    async def store_pieces(
        self,
        pieces: Callable[[], AsyncIterator[bytes]],
        *,
        media_type: str,
        row_count: int | None,
        schema_digest: str | None = None,
    ) -> PayloadRef:
        """Store content that is not in memory; `pieces` may be asked for it several times."""
        reference = await _call_store(
            lambda: self._payloads.put_payload(
                pieces(),
                tenant_id=self._tenant_scope.tenant_id,
                organization_id=self._tenant_scope.organization_id,
                media_type=media_type,
                row_count=row_count,
                schema_digest=schema_digest,
            )
        )
        _count_bytes(reference.payload_bytes, tier="store", operation="write")
        return reference

    async def read_payload(self, ref: PayloadRef) -> bytes:
        """Return stored bytes whose digest was checked."""
        return await _call_store(lambda: self._payloads.read_payload(ref))

    async def delete_payload(self, ref: PayloadRef) -> None:
        """Remove content; what is not there is no error."""
        await _call_store(lambda: self._payloads.delete_payload(ref))
        self._cache.forget_value(self._build_cache_key(ref.sha256))

    async def list_names(self, prefix: str) -> list[str]:
        """Return the names of objects under a prefix, in order."""
        return await _call_store(
            lambda: self._payloads.list_names(
                prefix,
                tenant_id=self._tenant_scope.tenant_id,
                organization_id=self._tenant_scope.organization_id,
            )
        )

    async def put_named(self, name: str, data: bytes) -> bytes | None:
        """Write an object unless the name is taken; return the bytes that were there before."""
        return await _call_store(
            lambda: self._payloads.put_named(
                name,
                data,
                tenant_id=self._tenant_scope.tenant_id,
                organization_id=self._tenant_scope.organization_id,
            )
        )

    async def delete_named(self, name: str) -> None:
        """Remove an object by name; what is not there is no error."""
        await _call_store(
            lambda: self._payloads.delete_payload(self.build_named_ref(name, b"", row_count=0))
        )

    def build_named_ref(self, name: str, data: bytes, *, row_count: int) -> PayloadRef:
        """Refer to what `put_named` has written."""
        return PayloadRef(
            uri=locators.build_named_locator(
                self._tenant_scope.tenant_id, self._tenant_scope.organization_id, name
            ),
            sha256=codec.digest_hex(data),
            media_type=JSON_MEDIA_TYPE,
            payload_bytes=len(data),
            row_count=row_count,
        )

    async def find_named(self, name: str) -> bytes | None:
        """Return an object by name, or None."""
        return await _call_store(
            lambda: self._payloads.find_named(
                name,
                tenant_id=self._tenant_scope.tenant_id,
                organization_id=self._tenant_scope.organization_id,
            )
        )


async def decode_payload(data: bytes, ref: PayloadRef) -> Any:
    """Return the value of a result payload; raises `ToolFailure`."""
    try:
        if not is_packed(data):
            return codec.decode_json(data)
        await load_modules(_ENCODING)
        return encoding.decode_payload(data)
    except (PayloadUnreadable, msgspec.DecodeError) as problem:
        text = f"the payload {ref.sha256} cannot be read as a result: {problem}"
        raise ToolFailure(build_error("parse", text, source="store")) from problem


def _count_cache_read(*, is_hit: bool) -> None:
    labels = {names.TIER: "memory", names.OUTCOME: "hit" if is_hit else "miss"}
    instruments.add_to_counter(names.STORAGE_READS, labels=labels)


async def gather_spread(value: Any, ref: PayloadRef, read_bytes: Read) -> Any:
    """Put the rows of a spread result in their place; raises `ToolFailure`."""
    try:
        return await result_values.gather_rows(value, ref, read_bytes)
    except PayloadUnreadable as problem:
        raise ToolFailure(build_error("parse", str(problem), source="store")) from problem


def _count_bytes(count: int, *, tier: str, operation: str) -> None:
    labels = {names.TIER: tier, names.OPERATION: operation}
    instruments.add_to_counter(names.PAYLOAD_BYTES, count, labels=labels)


async def _call_store(call: Callable[[], Awaitable[T]]) -> T:
    """Call the store, again while that may help; raises `ToolFailure`."""
    try:
        return await retry_store_call(call)
    except Permanent as problem:
        raise ToolFailure(build_error("storage_quota", str(problem), source="store")) from problem
    except Retryable as problem:
        is_missing = isinstance(problem, PayloadMissing)
        kind = "reference_not_available" if is_missing else "storage_access"
        raise ToolFailure(build_error(kind, str(problem), source="store")) from problem
