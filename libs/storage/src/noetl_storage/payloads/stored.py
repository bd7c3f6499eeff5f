"""The payload store over any adapter; digests, names, owners, seals and the shelf are here."""

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import islice
from typing import ParamSpec, TypeVar

from noetl_contracts import codec
from noetl_contracts.errors import PayloadSealBroken
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef
from noetl_storage.errors import (
    PayloadCorrupt,
    PayloadMissing,
    StorageMisconfigured,
    StorageUnavailable,
)
from noetl_storage.payload_ports import SEAL_MAGIC, Owner, Seals, StoredContent, StoredObject
from noetl_storage.payloads import checking, cutting, keys, opening
from noetl_storage.payloads.objects import CHUNK_BYTES, SPOOL_BYTES, Found, Objects, Pieces, Runner

P = ParamSpec("P")
R = TypeVar("R")

_NAMED_MEDIA_TYPE = "application/octet-stream"
_CONFLICT_ATTEMPTS_MAX = 20
_PAGE = 500
_PROBE_KEY = "reachable"
_REACH_PAUSE_S = 0.5


class StoredPayloads:
    """Content by digest and objects by name, sealed when there are seals."""

    def __init__(self, objects: Objects, *, runner: Runner, seals: Seals | None = None) -> None:
        self._objects = objects
        self._runner = runner
        self._seals = seals

    async def wait_reachable(self, *, connect_s: float, where: str) -> None:
        """Return once the server answers anything at all; raises `StorageUnavailable`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + connect_s
        while True:
            try:
                await self._run(_PROBE_KEY, self._objects.find, _PROBE_KEY)
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
        """Store content; storing it twice, also at the same time, is storing it once."""
        owner = Owner(tenant_id=tenant_id, organization_id=organization_id)
        keys.check_owner(owner)
        if isinstance(data, bytes) and (self._seals is None or len(data) <= SPOOL_BYTES):
            sha256, payload_bytes = codec.digest(data), len(data)
            key = keys.content_key(tenant_id, organization_id, sha256)
            key_id = await self._run(key, self._store, key, data, media_type, owner)
        else:
            # What is large is not held a second time, sealed.
            pieces = cutting.cut(data) if isinstance(data, bytes) else cutting.joined(data)
            sha256, payload_bytes, key_id = await self._store_stream(pieces, owner, media_type)
        return keys.build_ref(
            tenant_id=tenant_id,
            organization_id=organization_id,
            sha256=sha256,
            payload_bytes=payload_bytes,
            media_type=media_type,
            row_count=row_count,
            schema_digest=schema_digest,
            key_id=key_id,
        )

    async def read(self, ref: PayloadRef) -> bytes:
        """Return content whose digest was checked; raises `PayloadMissing`, `PayloadCorrupt`."""
        key, owner, name = keys.place_of(ref)
        data = await self._found(key, partial(self._fetch, owner=owner, name=name, ref=ref))
        if data is None:
            raise checking.missing(ref)
        return data

    async def stream(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """Yield content in pieces; the digest is checked before the last one is yielded."""
        key, owner, name = keys.place_of(ref)
        file = await self._found(key, self._objects.open)
        if file is None:
            raise checking.missing(ref)
        try:
            pieces = self._pieces(key, file)
            if self._seals is None:
                checked = opening.plain_stream(pieces, owner=owner, ref=ref)
            else:
                pieces = opening.opened_stream(pieces, owner=owner, name=name, seals=self._seals)
                checked = checking.checked_stream(pieces, ref)
            async for piece in checked:
                yield piece
        except PayloadSealBroken as failure:
            raise checking.corrupt(ref) from failure
        finally:
            await self._run(key, file.close)

    async def exists(self, ref: PayloadRef) -> bool:
        """Tell whether the content is stored."""
        key, _, _ = keys.place_of(ref)
        return await self._found(key, self._described) is not None

    async def delete(self, ref: PayloadRef) -> None:
        """Remove content; removing what is not there is no error."""
        key, _, _ = keys.place_of(ref)
        for place in keys.places_to_look(key):
            await self._run(place, self._objects.remove, place)

    async def put_named(
        self, name: str, data: bytes, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Write an object unless the name is taken; return the bytes that were there before."""
        owner = Owner(tenant_id=tenant_id, organization_id=organization_id)
        key = keys.named_key(name, tenant_id, organization_id)
        for _ in range(_CONFLICT_ATTEMPTS_MAX):
            try:
                await self._run(key, self._store_once, key, data, owner, name)
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
        return await self._find_named(keys.named_key(name, tenant_id, organization_id), owner, name)

    async def list_names(
        self, prefix: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> list[str]:
        """Return the names under a prefix, in order."""
        keys.check_prefix(prefix)
        place = keys.named_prefix(tenant_id, organization_id)
        pages = [page async for page in self._pages(place + prefix)]
        return sorted(found.key.removeprefix(place) for page in pages for found in page)

    async def list_contents(self, owner: Owner) -> AsyncIterator[list[StoredContent]]:
        """Yield all content of an owner, shelved or not, page by page."""
        for place in keys.content_prefixes(owner):
            async for page in self._pages(place):
                contents = (keys.content_of(found) for found in page)
                yield [content for content in contents if content is not None]

    async def list_objects(self, owner: Owner) -> AsyncIterator[list[StoredObject]]:
        """Yield all named objects of an owner, page by page."""
        place = keys.named_prefix(owner.tenant_id, owner.organization_id)
        async for page in self._pages(place):
            yield [keys.object_of(owner, found) for found in page]

    async def has_content(self, owner: Owner, sha256: str) -> bool:
        """Tell whether content is in its place or on the shelf."""
        key = keys.owned_content(owner, sha256)
        return await self._found(key, self._described) is not None

    async def remove_object(self, owner: Owner, name: str) -> None:
        """Remove a named object for good; what is not there is no error."""
        key = keys.owned_name(owner, name)
        await self._run(key, self._objects.remove, key)

    async def read_text(self, owner: Owner, content: str, *, is_name: bool) -> AsyncIterator[bytes]:
        """Yield the bytes of content by digest, or of a named object; nothing when it is gone."""
        make = keys.owned_name if is_name else keys.owned_content
        key = make(owner, content)
        file = await self._found(key, self._objects.open)
        if file is None:
            return
        name = content if is_name else ""
        digest = codec.digester()
        try:
            pieces = self._pieces(key, file)
            if self._seals is not None:
                pieces = opening.opened_stream(pieces, owner=owner, name=name, seals=self._seals)
            async for piece in pieces:
                digest.update(piece)
                yield piece
        except PayloadSealBroken as failure:
            raise PayloadCorrupt(f"{key} was changed in the store: {failure}") from failure
        finally:
            await self._run(key, file.close)
        if not is_name and digest.hexdigest() != content:
            raise PayloadCorrupt(f"{key} was changed in the store: its digest is another")

    async def shelve(self, owner: Owner, content: StoredContent) -> bool:
        """Put content aside; False when it is gone or was written again since it was listed."""
        key = keys.owned_content(owner, content.sha256)
        return await self._run(key, self._shelve, key, content)

    async def restore(self, owner: Owner, sha256: str) -> bool:
        """Copy shelved content back to its place; False when it is there, or on no shelf."""
        key = keys.owned_content(owner, sha256)
        return await self._run(key, self._restore, key)

    async def purge(self, owner: Owner, sha256: str) -> None:
        """Remove shelved content for good; what is not there is no error."""
        shelved = keys.shelf_key(keys.owned_content(owner, sha256))
        await self._run(shelved, self._objects.remove, shelved)

    async def reseal(self, owner: Owner) -> tuple[int, int]:
        """Seal everything of an owner with its current key; return how many were, and had been.

        Content keeps its digest and every reference holds. What was never sealed is sealed now.
        """
        changed = kept = 0
        for place in (*keys.content_prefixes(owner), keys.owned_prefix(owner)):
            async for page in self._pages(place):
                for found in page:
                    done = await self._run(found.key, self._reseal, owner, found.key)
                    changed, kept = changed + done, kept + (not done)
        return changed, kept

    async def _run(self, key: str, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await self._runner.run(self._guarded, key, partial(call, *args, **kwargs))

    def _guarded(self, key: str, call: Callable[[], R]) -> R:
        with self._objects.guard(key):
            return call()

    async def _found(self, key: str, look: Callable[[str], R]) -> R | None:
        """Look at a key, on the shelf, and once more where it may have come back meanwhile."""
        for place in keys.places_to_look(key):
            try:
                return await self._run(place, look, place)
            except KeyError:
                continue
        return None

    async def _pieces(self, key: str, file: Pieces) -> AsyncIterator[bytes]:
        try:
            while piece := await self._run(key, file.read, CHUNK_BYTES):
                yield piece
        except KeyError as failure:
            raise PayloadMissing(f"{key} was removed while it was read") from failure

    async def _pages(self, prefix: str) -> AsyncIterator[list[Found]]:
        listing = self._objects.list_under(prefix)
        while page := await self._run(prefix, lambda: list(islice(listing, _PAGE))):
            yield page

    async def _find_named(self, key: str, owner: Owner, name: str) -> bytes | None:
        try:
            data = await self._run(key, self._objects.fetch, key)
        except KeyError:
            return None
        return await self._run(key, opening.opened, data, owner=owner, name=name, seals=self._seals)

    async def _store_stream(
        self, pieces: AsyncIterator[bytes], owner: Owner, media_type: str
    ) -> tuple[str, int, str | None]:
        """Gather what comes until its digest, and with it its key, is known."""
        digest, payload_bytes = codec.digester(), 0
        place = keys.content_prefixes(owner)[0]
        seals = self._seals
        # Who holds the tenant's key may have to be asked to wrap one.
        sealing = None if seals is None else await self._run(place, seals.begin, owner, "")
        staged = await self._run(place, self._objects.stage)
        try:
            async for piece in pieces:
                digest.update(piece)
                payload_bytes += len(piece)
                written = piece if sealing is None else sealing.update(piece)
                await self._run(place, staged.write, written)
            if sealing is not None:
                await self._run(place, staged.write, sealing.finish())
            key = keys.owned_content(owner, digest.hexdigest())
            await self._run(key, self._objects.store_staged, key, staged, media_type)
        finally:
            await self._run(place, self._objects.discard, staged)
        return digest.hexdigest(), payload_bytes, None if sealing is None else sealing.key_id

    def _store(self, key: str, data: bytes, media_type: str, owner: Owner) -> str | None:
        sealed, key_id = self._sealed(data, owner, "")
        self._objects.store(key, sealed, media_type)
        return key_id

    def _store_once(self, key: str, data: bytes, owner: Owner, name: str) -> None:
        sealed, _ = self._sealed(data, owner, name)
        self._objects.store_once(key, sealed)

    def _sealed(self, data: bytes, owner: Owner, name: str) -> tuple[bytes, str | None]:
        if self._seals is None:
            return data, None
        sealing = self._seals.begin(owner, name)
        return sealing.update(data) + sealing.finish(), sealing.key_id

    def _fetch(self, key: str, *, owner: Owner, name: str, ref: PayloadRef) -> bytes:
        data = self._objects.fetch(key)
        # Content may begin like a sealed object and be none.
        if self._seals is None and codec.digest(data) == ref.sha256:
            return data
        try:
            data = opening.opened(data, owner=owner, name=name, seals=self._seals)
        except PayloadSealBroken as failure:
            raise checking.corrupt(ref) from failure
        return checking.checked(data, ref)

    def _described(self, key: str) -> Found:
        found = self._objects.find(key)
        if found is None:
            raise KeyError(key)
        return found

    def _shelve(self, key: str, content: StoredContent) -> bool:
        found = self._objects.find(key)
        if found is None or found.modified_at > content.modified_at:
            return False
        try:
            self._objects.move(key, keys.shelf_key(key))
        except KeyError:
            return False
        return True

    def _restore(self, key: str) -> bool:
        # The copy on the shelf stays: somebody may still be removing what he has put aside.
        if self._objects.find(key) is not None:
            return False
        try:
            source = self._objects.open(keys.shelf_key(key))
        except KeyError:
            return False
        staged = self._objects.stage()
        try:
            while piece := source.read(CHUNK_BYTES):
                staged.write(piece)
            self._objects.store_staged(key, staged, _NAMED_MEDIA_TYPE)
        finally:
            source.close()
            self._objects.discard(staged)
        return True

    def _reseal(self, owner: Owner, key: str) -> bool:
        """Put a new head before an object, or seal it; False when nothing had to be done."""
        if self._seals is None:
            raise opening.keyless(owner)
        name = keys.name_in(owner, key)
        try:
            source = self._objects.open(key)
        except KeyError:
            return False
        staged = self._objects.stage()
        try:
            first = source.read(CHUNK_BYTES)
            if first.startswith(SEAL_MAGIC):
                head_bytes, head = self._seals.reseal_head(owner, name, first)
                if head is None:
                    return False
                staged.write(head + first[head_bytes:])
                while piece := source.read(CHUNK_BYTES):
                    staged.write(piece)
            else:
                sealing = self._seals.begin(owner, name)
                while first:
                    staged.write(sealing.update(first))
                    first = source.read(CHUNK_BYTES)
                staged.write(sealing.finish())
            self._objects.store_staged(key, staged, _NAMED_MEDIA_TYPE)
        finally:
            source.close()
            self._objects.discard(staged)
        return True
