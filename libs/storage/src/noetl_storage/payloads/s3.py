"""Payloads in S3 and compatible stores.

boto3 does everything but writes of small objects with plain keys: libcurl sends those faster.
"""

import re
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any

import boto3
import botocore.exceptions
import pycurl
import urllib3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from msgspec import Struct

from noetl_storage.payloads.bucket_keys import BucketKeys
from noetl_storage.payloads.objects import SPOOL_BYTES, ObjectInfo, ObjectReader, is_request_refused
from noetl_storage.ports.errors import StorageMisconfigured, StorageRefused, StorageUnavailable
from noetl_storage.process.curl import create_curl_handle

_TRANSFER = TransferConfig(
    multipart_threshold=SPOOL_BYTES, multipart_chunksize=SPOOL_BYTES, use_threads=False
)
_MISSING_CODES = frozenset({"NoSuchKey", "404", "NotFound"})
_EXISTS_CODES = frozenset({"PreconditionFailed", "412"})
_CONFLICT_CODES = frozenset({"ConditionalRequestConflict", "409"})
_REFUSED_CODES = frozenset(
    {"NoSuchBucket", "AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)
# The largest object that libcurl writes.
BYTES_MAX = 1024 * 1024
_CONNECT_MS, _TOTAL_MS = 5_000, 30_000
_IDLE_HANDLES_MAX = 32
# Keys of which all S3 clients sign the same form; other characters are quoted differently.
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.~-]+(/[A-Za-z0-9_.~-]+)*")
_DOTS = re.compile(r"(^|/)\.\.?(/|$)")
_MEDIA_TYPE = "binary/octet-stream"
_HTTP_OK, _HTTP_CONFLICT, _HTTP_EXISTS = 200, 409, 412


def open_client(
    *,
    endpoint: str | None,
    region: str,
    access_key: str | None,
    secret_key: str | None,
    connections_max: int,
) -> Any:
    """Make a client whose waits and retries are bounded."""
    session = _create_session(region, BucketKeys(access_key, secret_key))
    return _create_client(session, endpoint=endpoint, connections_max=connections_max)


def _create_session(region: str, keys: BucketKeys) -> boto3.session.Session:
    return boto3.session.Session(
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        aws_session_token=keys.session_token,
        region_name=region,
    )


def _create_client(
    session: boto3.session.Session, *, endpoint: str | None, connections_max: int
) -> Any:
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

    def __init__(self, client: Any, *, bucket: str, puts: "SmallPuts") -> None:
        self._client = client
        self._bucket = bucket
        self._puts = puts

    def translate_errors(self, key: str) -> AbstractContextManager[None]:
        """Translate what the client raises."""
        return translate_errors(self._bucket, key)

    def store_object(self, key: str, data: bytes, media_type: str) -> None:
        """Write an object, replacing the one before."""
        if self._puts.put_small(key, data, media_type=media_type, is_new=False):
            return
        self._client.put_object(Bucket=self._bucket, Key=key, Body=data, ContentType=media_type)

    def store_object_once(self, key: str, data: bytes) -> None:
        """Write an object; one that exists is a `FileExistsError` for `translate_errors`."""
        if self._puts.put_small(key, data, is_new=True):
            return
        self._client.put_object(Bucket=self._bucket, Key=key, Body=data, IfNoneMatch="*")

    def open_staging(self) -> IO[bytes]:
        """Gather in memory, beyond a few megabytes in a file."""
        return tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)

    def store_staged(self, key: str, staging_file: IO[bytes], media_type: str) -> None:
        """Upload what was staged, in parts when it is large."""
        staging_file.seek(0)
        arguments = {"ContentType": media_type}
        self._client.upload_fileobj(
            staging_file, self._bucket, key, ExtraArgs=arguments, Config=_TRANSFER
        )

    def discard_staged(self, staging_file: IO[bytes]) -> None:
        """Close what was staged; its file goes with it."""
        staging_file.close()

    def read_object(self, key: str) -> bytes:
        """Return an object."""
        with self._client.get_object(Bucket=self._bucket, Key=key)["Body"] as body:
            data: bytes = body.read()
            return data

    def open_object(self, key: str) -> ObjectReader:
        """Begin to read an object."""
        body: ObjectReader = self._client.get_object(Bucket=self._bucket, Key=key)["Body"]
        return body

    def find_object(self, key: str) -> ObjectInfo | None:
        """Describe an object, or return None."""
        try:
            with self.translate_errors(key):
                about = self._client.head_object(Bucket=self._bucket, Key=key)
        except KeyError:
            return None
        return ObjectInfo(
            key=key, stored_bytes=about["ContentLength"], modified_at=about["LastModified"]
        )

    def delete_object(self, key: str) -> None:
        """Remove an object; removing what is not there is no error."""
        self._client.delete_object(Bucket=self._bucket, Key=key)

    def move_object(self, key: str, to: str) -> None:
        """Copy an object within the bucket, then remove the first."""
        source = {"Bucket": self._bucket, "Key": key}
        self._client.copy(source, self._bucket, to, Config=_TRANSFER)
        self.delete_object(key)

    def iterate_objects_under(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with a prefix and lies behind another, in order."""
        start = {"StartAfter": after} if after else {}
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix, **start
        )
        for page in pages:
            for entry in page.get("Contents", []):
                yield ObjectInfo(
                    key=entry["Key"],
                    stored_bytes=entry["Size"],
                    modified_at=entry["LastModified"],
                )


def open_bucket(
    bucket: str,
    *,
    endpoint: str | None,
    region: str,
    keys: BucketKeys,
    connections_max: int,
) -> S3Objects:
    """Return a bucket, of Amazon where no endpoint is named."""
    session = _create_session(region, keys)
    client = _create_client(session, endpoint=endpoint, connections_max=connections_max)

    def find_signing_keys() -> SigningKeys | None:
        credentials = session.get_credentials()
        if credentials is None:
            return None
        # Those of a role are renewed here when they are about to expire.
        frozen_credentials = credentials.get_frozen_credentials()
        return SigningKeys(
            access_key=frozen_credentials.access_key,
            secret_key=frozen_credentials.secret_key,
            token=frozen_credentials.token,
        )

    puts = SmallPuts(
        endpoint=client.meta.endpoint_url, region=region, bucket=bucket, keys=find_signing_keys
    )
    return S3Objects(client, bucket=bucket, puts=puts)


@contextmanager
def translate_errors(bucket: str, key: str) -> Iterator[None]:
    """Raise `KeyError` for a missing object, `FileExistsError` for a taken name, else storage's."""
    try:
        yield
    except FileExistsError:
        raise
    except botocore.exceptions.ClientError as failure:
        raise _name_client_error(failure, bucket, key) from failure
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


def _name_client_error(
    failure: botocore.exceptions.ClientError, bucket: str, key: str
) -> Exception:
    code = str(failure.response.get("Error", {}).get("Code", ""))
    if code in _MISSING_CODES:
        return KeyError(key)
    if code in _EXISTS_CODES or code in _CONFLICT_CODES:
        return FileExistsError(key)
    if code in _REFUSED_CODES:
        return StorageMisconfigured(f"s3://{bucket} refused {key}: {code}")
    status = failure.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    kind = StorageRefused if is_request_refused(status) else StorageUnavailable
    return kind(f"s3://{bucket}/{key}: {code or failure}")


class SigningKeys(Struct, frozen=True, kw_only=True):
    """What signs a request; a role's keys come with a token, and expire."""

    access_key: str
    secret_key: str
    token: str | None = None


class SmallPuts:
    """Sends objects to one bucket; any thread may ask. `keys` gives what signs at the moment."""

    def __init__(
        self, *, endpoint: str, region: str, bucket: str, keys: Callable[[], SigningKeys | None]
    ) -> None:
        self._place = f"{endpoint.rstrip('/')}/{bucket}/"
        self._signing = f"aws:amz:{region}:s3"
        self._keys = keys
        self._idle: deque[pycurl.Curl] = deque(maxlen=_IDLE_HANDLES_MAX)

    def put_small(
        self, key: str, data: bytes, *, media_type: str = _MEDIA_TYPE, is_new: bool
    ) -> bool:
        """Write an object; False when somebody else must try.

        With `is_new` raises `FileExistsError` where there is one already.
        """
        if len(data) > BYTES_MAX or not _PLAIN_KEY.fullmatch(key) or _DOTS.search(key):
            return False
        keys = self._keys()
        if keys is None:
            return False
        headers = ["Accept:", "Expect:", f"Content-Type: {media_type}"]
        if is_new:
            headers.append("If-None-Match: *")
        if keys.token is not None:
            headers.append(f"X-Amz-Security-Token: {keys.token}")
        try:
            status = self._send_request(key, data, headers, keys)
        except pycurl.error:
            return False
        if is_new and status in {_HTTP_EXISTS, _HTTP_CONFLICT}:
            raise FileExistsError(key)
        return status == _HTTP_OK

    def _send_request(self, key: str, data: bytes, headers: list[str], keys: SigningKeys) -> int:
        try:
            curl = self._idle.pop()
        except IndexError:
            curl = self._create_handle()
        curl.setopt(pycurl.URL, self._place + key)
        curl.setopt(pycurl.USERNAME, keys.access_key)
        curl.setopt(pycurl.PASSWORD, keys.secret_key)
        curl.setopt(pycurl.HTTPHEADER, headers)
        curl.setopt(pycurl.POSTFIELDS, data)
        curl.perform()
        status: int = curl.getinfo(pycurl.RESPONSE_CODE)
        self._idle.append(curl)
        return status

    def _create_handle(self) -> pycurl.Curl:
        curl = create_curl_handle()
        curl.setopt(pycurl.CUSTOMREQUEST, "PUT")
        curl.setopt(pycurl.AWS_SIGV4, self._signing)
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, _CONNECT_MS)
        curl.setopt(pycurl.TIMEOUT_MS, _TOTAL_MS)
        # What a refusal says in many words, boto3 will ask for again.
        curl.setopt(pycurl.WRITEFUNCTION, len)
        return curl
