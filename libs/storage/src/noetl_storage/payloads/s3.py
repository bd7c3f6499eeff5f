"""Payloads in S3 and what speaks like it."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, TypeVar

import boto3
import botocore.exceptions
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from noetl_contracts import codec
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.payloads import PayloadRef
from noetl_storage.errors import StorageMisconfigured, StorageUnavailable
from noetl_storage.payloads import checking, keys
from noetl_storage.payloads.executor import Threads

R = TypeVar("R")

_CHUNK_BYTES = 1024 * 1024
_SPOOL_BYTES = 8 * 1024 * 1024
_TRANSFER = TransferConfig(
    multipart_threshold=_SPOOL_BYTES, multipart_chunksize=_SPOOL_BYTES, use_threads=False
)
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_TAKEN = frozenset({"PreconditionFailed", "412"})
_CONFLICT = frozenset({"ConditionalRequestConflict", "409"})
_CONFLICT_ATTEMPTS_MAX = 20
_PROBE_KEY = "reachable"
_REACH_PAUSE_S = 0.5
_REFUSED = frozenset(
    {"NoSuchBucket", "AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)


def open_client(
    *,
    endpoint: str | None,
    region: str,
    access_key: str | None,
    secret_key: str | None,
    connections_max: int,
) -> Any:
    """Make a client whose waits and retries are bounded."""
    return boto3.session.Session().client(
        "s3",
        endpoint_url=endpoint,
        region_name=region,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=Config(
            max_pool_connections=max(connections_max, 32),
            connect_timeout=5,
            read_timeout=30,
            retries={"mode": "standard", "total_max_attempts": 4},
            s3={"addressing_style": "path"},
            # We check a stronger digest ourselves; trailing checksums are unknown to some servers.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        ),
    )


class S3Payloads:
    """One bucket; the blocking client runs in bounded threads."""

    def __init__(self, client: Any, *, bucket: str, threads: Threads) -> None:
        self._client = client
        self._bucket = bucket
        self._threads = threads

    async def wait_reachable(self, *, connect_s: float) -> None:
        """Return once the server answers anything at all; raises `StorageUnavailable`."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + connect_s
        while True:
            try:
                await self._run(self._client.head_object, Key=_PROBE_KEY)
            except StorageUnavailable as failure:
                if loop.time() + _REACH_PAUSE_S > deadline:
                    where = self._client.meta.endpoint_url
                    raise StorageUnavailable(
                        f"no S3 at {where} within {connect_s:g} s: {failure}. "
                        "Check that the server runs, and the endpoint in PAYLOAD_URL."
                    ) from failure
                await asyncio.sleep(_REACH_PAUSE_S)
            except (KeyError, StorageMisconfigured):
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
        place = partial(keys.content_key, tenant_id, organization_id)
        if isinstance(data, bytes):
            sha256, payload_bytes = codec.digest(data), len(data)
            key = place(sha256)
            await self._run(self._client.put_object, Key=key, Body=data, ContentType=media_type)
        else:
            sha256, payload_bytes = await self._store_stream(data, place, media_type)
        return keys.build_ref(
            tenant_id=tenant_id,
            organization_id=organization_id,
            sha256=sha256,
            payload_bytes=payload_bytes,
            media_type=media_type,
            row_count=row_count,
            schema_digest=schema_digest,
        )

    async def read(self, ref: PayloadRef) -> bytes:
        """Return content whose digest was checked."""
        data = await self._find(keys.key_of(ref))
        if data is None:
            raise checking.missing(ref)
        return checking.checked(data, ref)

    async def stream(self, ref: PayloadRef) -> AsyncIterator[bytes]:
        """Yield content in pieces; the digest is checked before the last one is yielded."""
        try:
            answer = await self._run(self._client.get_object, Key=keys.key_of(ref))
        except KeyError:
            raise checking.missing(ref) from None
        body = answer["Body"]
        try:
            chunks = self._threads.read_all(partial(self._read_some, body))
            async for chunk in checking.checked_stream(chunks, ref):
                yield chunk
        finally:
            body.close()

    async def exists(self, ref: PayloadRef) -> bool:
        """Tell whether the content is stored."""
        try:
            await self._run(self._client.head_object, Key=keys.key_of(ref))
        except KeyError:
            return False
        return True

    async def delete(self, ref: PayloadRef) -> None:
        """Remove content; removing what is not there is no error."""
        await self._run(self._client.delete_object, Key=keys.key_of(ref))

    async def put_named(
        self, name: str, data: bytes, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Write an object unless the name is taken; return the bytes that were there before."""
        key = keys.named_key(name, tenant_id, organization_id)
        for _ in range(_CONFLICT_ATTEMPTS_MAX):
            try:
                await self._run(self._client.put_object, Key=key, Body=data, IfNoneMatch="*")
            except FileExistsError:
                before = await self._find(key)
                if before is not None:
                    return before
            else:
                return None
        raise StorageUnavailable(f"other writers keep contending for {key}")

    async def find_named(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bytes | None:
        """Return an object by name, or None."""
        return await self._find(keys.named_key(name, tenant_id, organization_id))

    async def list_names(
        self, prefix: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> list[str]:
        """Return the names under a prefix, in order."""
        keys.check_prefix(prefix)
        place = keys.named_prefix(tenant_id, organization_id)
        return await self._threads.run(self._list_names, place, prefix)

    async def _find(self, key: str) -> bytes | None:
        try:
            return await self._threads.run(self._get, key)
        except KeyError:
            return None

    async def _run(self, call: Callable[..., R], **arguments: object) -> R:
        return await self._threads.run(self._call, call, arguments)

    async def _store_stream(
        self, chunks: AsyncIterator[bytes], place: Callable[[str], str], media_type: str
    ) -> tuple[str, int]:
        """Spool to learn the digest, then upload: beyond a few megabytes the spool is a file."""
        digest, payload_bytes = codec.digester(), 0
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES) as spool:
            async for chunk in chunks:
                digest.update(chunk)
                payload_bytes += len(chunk)
                await self._threads.run(spool.write, chunk)
            spool.seek(0)
            key = place(digest.hexdigest())
            await self._threads.run(self._upload, spool, key, media_type)
        return digest.hexdigest(), payload_bytes

    def _upload(self, file: IO[bytes], key: str, media_type: str) -> None:
        with translated(self._bucket, key):
            self._client.upload_fileobj(
                file,
                self._bucket,
                key,
                ExtraArgs={"ContentType": media_type},
                Config=_TRANSFER,
            )

    def _call(self, call: Callable[..., R], arguments: dict[str, object]) -> R:
        with translated(self._bucket, str(arguments["Key"])):
            return call(Bucket=self._bucket, **arguments)

    def _get(self, key: str) -> bytes:
        with translated(self._bucket, key):
            body = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
            with body:
                data: bytes = body.read()
                return data

    def _read_some(self, body: Any) -> bytes:
        with translated(self._bucket, "a stream"):
            data: bytes = body.read(_CHUNK_BYTES)
            return data

    def _list_names(self, place: str, prefix: str) -> list[str]:
        with translated(self._bucket, place):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=place + prefix
            )
            found = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        return sorted(key.removeprefix(place) for key in found)


@contextmanager
def translated(bucket: str, key: str) -> Iterator[None]:
    """Raise `KeyError` for a missing object, `FileExistsError` for a taken name, else storage's."""
    try:
        yield
    except botocore.exceptions.ClientError as failure:
        raise _named(failure, bucket, key) from failure
    except botocore.exceptions.NoCredentialsError as failure:
        raise StorageMisconfigured(f"s3://{bucket}: {failure}") from failure
    except (botocore.exceptions.BotoCoreError, boto3.exceptions.Boto3Error, OSError) as failure:
        raise StorageUnavailable(f"s3://{bucket}/{key}: {failure}") from failure


def _named(failure: botocore.exceptions.ClientError, bucket: str, key: str) -> Exception:
    code = str(failure.response.get("Error", {}).get("Code", ""))
    if code in _MISSING:
        return KeyError(key)
    if code in _TAKEN or code in _CONFLICT:
        return FileExistsError(key)
    if code in _REFUSED:
        return StorageMisconfigured(f"s3://{bucket} refused {key}: {code}")
    return StorageUnavailable(f"s3://{bucket}/{key}: {code or failure}")
