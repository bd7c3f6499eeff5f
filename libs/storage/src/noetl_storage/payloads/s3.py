"""Payloads in S3 and what speaks like it."""

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any

import boto3
import botocore.exceptions
import urllib3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from noetl_storage.errors import StorageMisconfigured, StorageRefused, StorageUnavailable
from noetl_storage.payload_ports import Seals
from noetl_storage.payloads import answers
from noetl_storage.payloads.executor import Threads
from noetl_storage.payloads.objects import SPOOL_BYTES, Found, Pieces
from noetl_storage.payloads.s3_puts import SigningKeys, SmallPuts
from noetl_storage.payloads.stored import StoredPayloads

_TRANSFER = TransferConfig(
    multipart_threshold=SPOOL_BYTES, multipart_chunksize=SPOOL_BYTES, use_threads=False
)
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_TAKEN = frozenset({"PreconditionFailed", "412"})
_CONFLICT = frozenset({"ConditionalRequestConflict", "409"})
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
    session = _session(region, access_key, secret_key)
    return _client(session, endpoint=endpoint, connections_max=connections_max)


def _session(region: str, access_key: str | None, secret_key: str | None) -> boto3.session.Session:
    return boto3.session.Session(
        aws_access_key_id=access_key, aws_secret_access_key=secret_key, region_name=region
    )


def _client(session: boto3.session.Session, *, endpoint: str | None, connections_max: int) -> Any:
    return session.client(
        "s3",
        endpoint_url=endpoint,
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


class S3Objects:
    """One bucket."""

    def __init__(self, client: Any, *, bucket: str, puts: SmallPuts) -> None:
        self._client = client
        self._bucket = bucket
        self._puts = puts

    def guard(self, key: str) -> AbstractContextManager[None]:
        """Translate what the client raises."""
        return translated(self._bucket, key)

    def store(self, key: str, data: bytes, media_type: str) -> None:
        """Write an object, replacing the one before."""
        if self._puts.put(key, data, media_type=media_type, is_new=False):
            return
        self._client.put_object(Bucket=self._bucket, Key=key, Body=data, ContentType=media_type)

    def store_once(self, key: str, data: bytes) -> None:
        """Write an object; raises what `guard` makes `FileExistsError` of when there is one."""
        if self._puts.put(key, data, is_new=True):
            return
        self._client.put_object(Bucket=self._bucket, Key=key, Body=data, IfNoneMatch="*")

    def stage(self) -> IO[bytes]:
        """Gather in memory, beyond a few megabytes in a file."""
        return tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)

    def store_staged(self, key: str, staged: IO[bytes], media_type: str) -> None:
        """Upload what was staged, in parts when it is large."""
        staged.seek(0)
        arguments = {"ContentType": media_type}
        self._client.upload_fileobj(
            staged, self._bucket, key, ExtraArgs=arguments, Config=_TRANSFER
        )

    def discard(self, staged: IO[bytes]) -> None:
        """Close what was staged; its file goes with it."""
        staged.close()

    def fetch(self, key: str) -> bytes:
        """Return an object."""
        with self._client.get_object(Bucket=self._bucket, Key=key)["Body"] as body:
            data: bytes = body.read()
            return data

    def open(self, key: str) -> Pieces:
        """Begin to read an object."""
        body: Pieces = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
        return body

    def find(self, key: str) -> Found | None:
        """Describe an object, or return None."""
        try:
            with self.guard(key):
                about = self._client.head_object(Bucket=self._bucket, Key=key)
        except KeyError:
            return None
        return Found(
            key=key, stored_bytes=about["ContentLength"], modified_at=about["LastModified"]
        )

    def remove(self, key: str) -> None:
        """Remove an object; removing what is not there is no error."""
        self._client.delete_object(Bucket=self._bucket, Key=key)

    def move(self, key: str, to: str) -> None:
        """Copy an object within the bucket, then remove the first."""
        source = {"Bucket": self._bucket, "Key": key}
        self._client.copy(source, self._bucket, to, Config=_TRANSFER)
        self.remove(key)

    def list_under(self, prefix: str) -> Iterator[Found]:
        """Yield every object whose key begins with a prefix."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix
        )
        for page in pages:
            for entry in page.get("Contents", []):
                yield Found(
                    key=entry["Key"],
                    stored_bytes=entry["Size"],
                    modified_at=entry["LastModified"],
                )


class S3Payloads(StoredPayloads):
    """Payloads in one bucket; the blocking client runs in bounded threads."""

    def __init__(
        self,
        client: Any,
        *,
        bucket: str,
        puts: SmallPuts,
        threads: Threads,
        seals: Seals | None = None,
    ) -> None:
        objects = S3Objects(client, bucket=bucket, puts=puts)
        super().__init__(objects, runner=threads, seals=seals)


def open_store(
    bucket: str,
    *,
    endpoint: str | None,
    region: str,
    access_key: str | None,
    secret_key: str | None,
    threads: Threads,
    connections_max: int,
    seals: Seals | None,
) -> tuple[S3Payloads, str]:
    """Return a bucket as a payload store, and the address of its server."""
    session = _session(region, access_key, secret_key)
    client = _client(session, endpoint=endpoint, connections_max=connections_max)
    address: str = client.meta.endpoint_url

    def keys() -> SigningKeys | None:
        found = session.get_credentials()
        if found is None:
            return None
        # Those of a role are renewed here when they are about to expire.
        known = found.get_frozen_credentials()
        return SigningKeys(
            access_key=known.access_key, secret_key=known.secret_key, token=known.token
        )

    puts = SmallPuts(endpoint=address, region=region, bucket=bucket, keys=keys)
    store = S3Payloads(client, bucket=bucket, puts=puts, threads=threads, seals=seals)
    return store, address


@contextmanager
def translated(bucket: str, key: str) -> Iterator[None]:
    """Raise `KeyError` for a missing object, `FileExistsError` for a taken name, else storage's."""
    try:
        yield
    except FileExistsError:
        raise
    except botocore.exceptions.ClientError as failure:
        raise _named(failure, bucket, key) from failure
    except botocore.exceptions.NoCredentialsError as failure:
        raise StorageMisconfigured(f"s3://{bucket}: {failure}") from failure
    except (
        botocore.exceptions.BotoCoreError,
        boto3.exceptions.Boto3Error,
        # A body that breaks off while it is read.
        urllib3.exceptions.HTTPError,
        OSError,
    ) as failure:
        raise StorageUnavailable(f"s3://{bucket}/{key}: {failure}") from failure


def _named(failure: botocore.exceptions.ClientError, bucket: str, key: str) -> Exception:
    code = str(failure.response.get("Error", {}).get("Code", ""))
    if code in _MISSING:
        return KeyError(key)
    if code in _TAKEN or code in _CONFLICT:
        return FileExistsError(key)
    if code in _REFUSED:
        return StorageMisconfigured(f"s3://{bucket} refused {key}: {code}")
    status = failure.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    kind = StorageRefused if answers.is_refusal(status) else StorageUnavailable
    return kind(f"s3://{bucket}/{key}: {code or failure}")
