"""The payload store over any adapter: digests, names, owners, seals, and the shelf.

The shelf holds what the collector of unused payloads puts aside before it is removed.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import islice
from typing import ParamSpec, TypeVar

from noetl_contracts import codec
from noetl_contracts.errors import PayloadSealBroken
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef
from noetl_storage.payloads import object_keys, objects, unseal
from noetl_storage.payloads.objects import (
    CHUNK_BYTES,
    SPOOL_BYTES,
    CallRunner,
    ObjectInfo,
    ObjectReader,
    Objects,
)
from noetl_storage.payloads.tenant_key_objects import StoredTenantKeys
from noetl_storage.ports.errors import (
    PayloadCorrupt,
    PayloadMissing,
    StorageMisconfigured,
    StorageUnavailable,
)
from noetl_storage.ports.payload_ports import (
    SEAL_MAGIC,
    ObjectSeals,
    Owner,
    StoredContent,
    StoredObject,
    TenantKeyTurns,
)

P = ParamSpec("P")
R = TypeVar("R")

_NAMED_MEDIA_TYPE = "application/octet-stream"
_CONFLICT_ATTEMPTS_MAX = 20
_PAGE = 500
_PROBE_KEY = "reachable"
_WRITE_CHECK_PREFIX = "readiness/"
# Servers keep less than this beside the name, and need no volume for it.
_WRITE_CHECK_BYTES = 4096
_REACH_PAUSE_S = 0.5


class PayloadStore:
    """Content by digest and objects by name, sealed when there are seals."""

    def __init__(
        self, objects: Objects, *, runner: CallRunner, seals: ObjectSeals | None = None
    ) -> None:
        self._objects = objects
        self._runner = runner
        self._seals = None if seals is None else seals.bind_objects(StoredTenantKeys(objects))

    async def wait_reachable(self, *, connect_s: float, where: str) -> None:
        """Return once the server answers anything at all; raises `StorageUnavailable`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + connect_s
        while True:
            try:
                await self._run_call(_PROBE_KEY, self._objects.find_object, _PROBE_KEY)
            except StorageUnavailable as failure:
                if loop.time() + _REACH_PAUSE_S > deadline:
                    raise StorageUnavailable(
                        f"no {where} within {connect_s:g} s: {failure}. "
                        "Check that the server runs, and the endpoint in PAYLOAD_URL."
                    ) from failure
                await asyncio.sleep(_REACH_PAUSE_S)
            except StorageMisconfigured:
                # A role that may not list is refused objects that are not there.
                return
            else:
                return

    async def check_write(self) -> None:
        """Write a small object, read it back and remove it.

        Raises what the store raises, and `PayloadCorrupt` where it gives other bytes or none.
        """
        data = secrets.token_bytes(_WRITE_CHECK_BYTES)
        key = f"{_WRITE_CHECK_PREFIX}{secrets.token_hex(16)}"
        await self._run_call(key, self._objects.store_object, key, data, _NAMED_MEDIA_TYPE)
        text = f"the payload store took {key} and does not return it: look at its volumes and logs"
        try:
            stored = await self._run_call(key, self._objects.read_object, key)
        except KeyError as failure:
            raise PayloadCorrupt(text) from failure
        if stored != data:
            raise PayloadCorrupt(text)
        await self._run_call(key, self._objects.delete_object, key)

    async def put_payload(
        self,
        data: bytes | AsyncIterator[bytes],
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        media_type: str,
        row_count: int | None = None,
        schema_digest: str | None = None,
    ) -> PayloadRef:
        """Store content; storing it twice, also at the same time, is storing it once."""
        owner = Owner(tenant_id=tenant_id, organization_id=organization_id)
        object_keys.check_owner(owner)
        if isinstance(data, bytes) and (self._seals is None or len(data) <= SPOOL_BYTES):
            sha256, payload_bytes = codec.digest_hex(data), len(data)
            key = object_keys.build_content_key(tenant_id, organization_id, sha256)
            key_id = await self._run_call(key, self._store_content, key, data, media_type, owner)
        else:
            # What is large is not held a second time, sealed.
            pieces = (
                objects.cut_into_chunks(data)
                if isinstance(data, bytes)
                else objects.join_small_pieces(data)
            )
            sha256, payload_bytes, key_id = await self._store_stream(pieces, owner, media_type)
        return object_keys.build_payload_ref(
            tenant_id=tenant_id,
            organization_id=organization_id,
            sha256=sha256,
            payload_bytes=payload_bytes,
            media_type=media_type,
            row_count=row_count,
            schema_digest=schema_digest,
            key_id=key_id,
        )

    async def read_payload(self, ref: PayloadRef) -> bytes:
        """Return content whose digest was checked; raises `PayloadMissing`, `PayloadCorrupt`."""
        key, owner, name = object_keys.find_place(ref)
        data = await self._look_everywhere(
            key, partial(self._read_checked, owner=owner, name=name, ref=ref)
        )
        if data is None:
            raise unseal.build_missing_error(ref)
        return data

    async def stream_payload(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """Yield content in pieces; the digest is checked before the last one is yielded."""
        key, owner, name = object_keys.find_place(ref)
        file = await self._look_everywhere(key, self._objects.open_object)
        if file is None:
            raise unseal.build_missing_error(ref)
        try:
            pieces = self._stream_pieces(key, file)
            if self._seals is None:
                checked = unseal.check_plain_stream(pieces, owner=owner, ref=ref)
            else:
                pieces = unseal.unseal_stream(pieces, owner=owner, name=name, seals=self._seals)
                checked = unseal.check_stream_digest(pieces, ref)
            async for piece in checked:
                yield piece
        except PayloadSealBroken as failure:
            raise unseal.build_corrupt_error(ref) from failure
        finally:
            await self._run_call(key, file.close)

    async def has_payload(self, ref: PayloadRef) -> bool:
        """Tell whether the content is stored."""
        key, _, _ = object_keys.find_place(ref)
        return await self._look_everywhere(key, self._get_object_info) is not None

    async def delete_payload(self, ref: PayloadRef) -> None:
        """Remove content; removing what is not there is no error."""
        key, _, _ = object_keys.find_place(ref)
        for place in object_keys.list_possible_places(key):
            await self._run_call(place, self._objects.delete_object, place)

    async def put_named(
        self, name: str, data: bytes, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Write an object unless the name is taken; return the bytes that were there before."""
        owner = Owner(tenant_id=tenant_id, organization_id=organization_id)
        key = object_keys.build_named_key(name, tenant_id, organization_id)
        for _ in range(_CONFLICT_ATTEMPTS_MAX):
            try:
                await self._run_call(key, self._store_named_once, key, data, owner, name)
            except FileExistsError:
                before = await self._find_named(key, owner, name)
                if before is not None:
                    return before
            else:
                return None
        raise StorageUnavailable(f"other writers keep contending for {key}")

    async def find_named(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Return an object by name, or None."""
        owner = Owner(tenant_id=tenant_id, organization_id=organization_id)
        return await self._find_named(
            object_keys.build_named_key(name, tenant_id, organization_id), owner, name
        )

    async def list_names(
        self,
        prefix: str,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        after: str = "",
        names_max: int | None = None,
    ) -> list[str]:
        """Return the names under a prefix and behind a name, in order, at most so many."""
        object_keys.check_name_prefix(prefix)
        place = object_keys.build_named_prefix(tenant_id, organization_id)
        names: list[str] = []
        async for page in self._iterate_pages(place + prefix, place + after if after else ""):
            names += [object_info.key.removeprefix(place) for object_info in page]
            if names_max is not None and len(names) >= names_max:
                break
        # A store may list a folder before or after names that begin as it does.
        return sorted(names)[:names_max]

    async def iterate_contents(self, owner: Owner) -> AsyncIterator[list[StoredContent]]:
        """Yield all content of an owner page by page, for the collector of unused payloads.

        What the collector has set aside is among it.
        """
        for place in object_keys.list_content_prefixes(owner):
            async for page in self._iterate_pages(place):
                contents = (object_keys.read_listed_content(object_info) for object_info in page)
                yield [content for content in contents if content is not None]

    async def iterate_objects(self, owner: Owner) -> AsyncIterator[list[StoredObject]]:
        """Yield all named objects of an owner, page by page."""
        place = object_keys.build_named_prefix(owner.tenant_id, owner.organization_id)
        async for page in self._iterate_pages(place):
            yield [object_keys.read_listed_object(owner, object_info) for object_info in page]

    async def count_stored_bytes(self, tenant_id: TenantId) -> int:
        """Add up what all objects of a tenant take in the store, of every organization."""
        place = object_keys.build_tenant_prefix(tenant_id)
        stored_bytes = 0
        async for page in self._iterate_pages(place):
            stored_bytes += sum(object_info.stored_bytes for object_info in page)
        return stored_bytes

    async def has_content(self, owner: Owner, sha256: str) -> bool:
        """Tell whether content is in its place or on the shelf."""
        key = object_keys.build_owned_content_key(owner, sha256)
        return await self._look_everywhere(key, self._get_object_info) is not None

    async def remove_object(self, owner: Owner, name: str) -> None:
        """Remove a named object for good; what is not there is no error."""
        key = object_keys.build_owned_name_key(owner, name)
        await self._run_call(key, self._objects.delete_object, key)

    async def stream_content(
        self, owner: Owner, content: str, *, is_name: bool
    ) -> AsyncIterator[bytes]:
        """Yield the bytes of content by digest, or of a named object; nothing when it is gone."""
        make = object_keys.build_owned_name_key if is_name else object_keys.build_owned_content_key
        key = make(owner, content)
        file = await self._look_everywhere(key, self._objects.open_object)
        if file is None:
            return
        name = content if is_name else ""
        digest = codec.start_digest()
        try:
            pieces = self._stream_pieces(key, file)
            if self._seals is not None:
                pieces = unseal.unseal_stream(pieces, owner=owner, name=name, seals=self._seals)
            async for piece in pieces:
                digest.update(piece)
                yield piece
        except PayloadSealBroken as failure:
            raise PayloadCorrupt(f"{key} was changed in the store: {failure}") from failure
        finally:
            await self._run_call(key, file.close)
        if not is_name and digest.hexdigest() != content:
            raise PayloadCorrupt(f"{key} was changed in the store: its digest is another")

    async def shelve_content(self, owner: Owner, content: StoredContent) -> bool:
        """Put content aside; False when it is gone or was written again since it was listed."""
        key = object_keys.build_owned_content_key(owner, content.sha256)
        return await self._run_call(key, self._shelve_object, key, content)

    async def restore_content(self, owner: Owner, sha256: str) -> bool:
        """Copy shelved content back to its place; False when it is there, or on no shelf."""
        key = object_keys.build_owned_content_key(owner, sha256)
        return await self._run_call(key, self._restore_object, key)

    async def purge_content(self, owner: Owner, content: StoredContent) -> bool:
        """Remove shelved content for good; False when it is gone or was put aside again since."""
        key = object_keys.build_owned_content_key(owner, content.sha256)
        shelved = object_keys.build_shelf_key(key)
        return await self._run_call(shelved, self._purge_object, shelved, content)

    def find_tenant_keys(self) -> TenantKeyTurns | None:
        """Return the keys of tenants that seal here, None where the deployment's keys do."""
        return None if self._seals is None else self._seals.find_tenant_keys()

    async def run_blocking(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a call that may block where blocking calls run."""
        return await self._runner.run_call(call, *args, **kwargs)

    async def reseal_owner(self, owner: Owner) -> tuple[int, int]:
        """Seal everything of an owner with its current key; return how many were, and had been.

        Content keeps its digest and every reference holds. What was never sealed is sealed now.
        """
        resealed_count = unchanged_count = 0
        for place in (
            *object_keys.list_content_prefixes(owner),
            object_keys.build_owned_prefix(owner),
        ):
            async for page in self._iterate_pages(place):
                for object_info in page:
                    is_resealed = await self._run_call(
                        object_info.key, self._reseal_object, owner, object_info.key
                    )
                    resealed_count, unchanged_count = (
                        resealed_count + is_resealed,
                        unchanged_count + (not is_resealed),
                    )
        return resealed_count, unchanged_count

    async def _run_call(
        self, key: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        return await self._runner.run_call(
            self._call_translated, key, partial(call, *args, **kwargs)
        )

    def _call_translated(self, key: str, call: Callable[[], R]) -> R:
        with self._objects.translate_errors(key):
            return call()

    async def _look_everywhere(self, key: str, look: Callable[[str], R]) -> R | None:
        """Look at a key, on the shelf, and once more where it may have come back meanwhile."""
        for place in object_keys.list_possible_places(key):
            try:
                return await self._run_call(place, look, place)
            except KeyError:
                continue
        return None

    async def _stream_pieces(self, key: str, file: ObjectReader) -> AsyncIterator[bytes]:
        try:
            while piece := await self._run_call(key, file.read, CHUNK_BYTES):
                yield piece
        except KeyError as failure:
            raise PayloadMissing(f"{key} was removed while it was read") from failure

    async def _iterate_pages(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        listing = self._objects.iterate_objects_under(prefix, after)
        while page := await self._run_call(prefix, lambda: list(islice(listing, _PAGE))):
            yield page

    async def _find_named(self, key: str, owner: Owner, name: str) -> bytes | None:
        try:
            data = await self._run_call(key, self._objects.read_object, key)
        except KeyError:
            return None
        return await self._run_call(
            key, unseal.unseal_object, data, owner=owner, name=name, seals=self._seals
        )

    async def _store_stream(
        self, pieces: AsyncIterator[bytes], owner: Owner, media_type: str
    ) -> tuple[str, int, str | None]:
        """Gather what comes until its digest, and with it its key, is known."""
        digest, payload_bytes = codec.start_digest(), 0
        place = object_keys.list_content_prefixes(owner)[0]
        seals = self._seals
        # Who holds the tenant's key may have to be asked to wrap one.
        sealing = (
            None if seals is None else await self._run_call(place, seals.start_sealing, owner, "")
        )
        staging_file = await self._run_call(place, self._objects.open_staging)
        try:
            async for piece in pieces:
                digest.update(piece)
                payload_bytes += len(piece)
                sealed_piece = piece if sealing is None else sealing.seal_bytes(piece)
                await self._run_call(place, staging_file.write, sealed_piece)
            if sealing is not None:
                await self._run_call(place, staging_file.write, sealing.finish_sealing())
            key = object_keys.build_owned_content_key(owner, digest.hexdigest())
            await self._run_call(key, self._objects.store_staged, key, staging_file, media_type)
        finally:
            await self._run_call(place, self._objects.discard_staged, staging_file)
        return digest.hexdigest(), payload_bytes, None if sealing is None else sealing.key_id

    def _store_content(self, key: str, data: bytes, media_type: str, owner: Owner) -> str | None:
        sealed, key_id = self._seal_data(data, owner, "")
        self._objects.store_object(key, sealed, media_type)
        return key_id

    def _store_named_once(self, key: str, data: bytes, owner: Owner, name: str) -> None:
        sealed, _ = self._seal_data(data, owner, name)
        self._objects.store_object_once(key, sealed)

    def _seal_data(self, data: bytes, owner: Owner, name: str) -> tuple[bytes, str | None]:
        if self._seals is None:
            return data, None
        sealing = self._seals.start_sealing(owner, name)
        return sealing.seal_bytes(data) + sealing.finish_sealing(), sealing.key_id

    def _read_checked(self, key: str, *, owner: Owner, name: str, ref: PayloadRef) -> bytes:
        data = self._objects.read_object(key)
        # Content may begin like a sealed object and be none.
        if self._seals is None and codec.digest_hex(data) == ref.sha256:
            return data
        try:
            data = unseal.unseal_object(data, owner=owner, name=name, seals=self._seals)
        except PayloadSealBroken as failure:
            raise unseal.build_corrupt_error(ref) from failure
        return unseal.check_digest(data, ref)

    def _get_object_info(self, key: str) -> ObjectInfo:
        object_info = self._objects.find_object(key)
        if object_info is None:
            raise KeyError(key)
        return object_info

    def _shelve_object(self, key: str, content: StoredContent) -> bool:
        object_info = self._objects.find_object(key)
        if object_info is None or object_info.modified_at > content.modified_at:
            return False
        try:
            self._objects.move_object(key, object_keys.build_shelf_key(key))
        except KeyError:
            return False
        return True

    def _purge_object(self, shelved: str, content: StoredContent) -> bool:
        object_info = self._objects.find_object(shelved)
        if object_info is None or object_info.modified_at > content.modified_at:
            return False
        self._objects.delete_object(shelved)
        return True

    def _restore_object(self, key: str) -> bool:
        # The copy on the shelf stays: somebody may still be removing what he has put aside.
        if self._objects.find_object(key) is not None:
            return False
        try:
            source = self._objects.open_object(object_keys.build_shelf_key(key))
        except KeyError:
            return False
        staging_file = self._objects.open_staging()
        try:
            while piece := source.read(CHUNK_BYTES):
                staging_file.write(piece)
            self._objects.store_staged(key, staging_file, _NAMED_MEDIA_TYPE)
        finally:
            source.close()
            self._objects.discard_staged(staging_file)
        return True

    def _reseal_object(self, owner: Owner, key: str) -> bool:
        """Put a new head before an object, or seal it; False when nothing had to be done."""
        if self._seals is None:
            raise unseal.build_keyless_error(owner)
        name = object_keys.find_object_name(owner, key)
        try:
            source = self._objects.open_object(key)
        except KeyError:
            return False
        staging_file = self._objects.open_staging()
        try:
            first = source.read(CHUNK_BYTES)
            if first.startswith(SEAL_MAGIC):
                head_bytes, head = self._seals.reseal_head(owner, name, first)
                if head is None:
                    return False
                staging_file.write(head + first[head_bytes:])
                while piece := source.read(CHUNK_BYTES):
                    staging_file.write(piece)
            else:
                sealing = self._seals.start_sealing(owner, name)
                while first:
                    staging_file.write(sealing.seal_bytes(first))
                    first = source.read(CHUNK_BYTES)
                staging_file.write(sealing.finish_sealing())
            self._objects.store_staged(key, staging_file, _NAMED_MEDIA_TYPE)
        finally:
            source.close()
            self._objects.discard_staged(staging_file)
        return True
