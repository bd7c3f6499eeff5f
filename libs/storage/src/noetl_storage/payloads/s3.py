"""Payloads in S3 and compatible stores.

libcurl writes small objects, and reads, finds and removes those with plain keys. boto3 does
everything else, and what libcurl could not: it is loaded when it is first asked.
"""

import io
import re
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import IO, TYPE_CHECKING, Any

import pycurl
from msgspec import Struct

from noetl_storage.payloads.bucket_keys import BucketKeys
from noetl_storage.payloads.objects import SPOOL_BYTES, ObjectInfo, ObjectReader, is_request_refused
from noetl_storage.ports.errors import StorageMisconfigured, StorageRefused, StorageUnavailable
from noetl_storage.process.curl import create_curl_handle
from noetl_storage.process.lazy_import import LazyModule

if TYPE_CHECKING:
    import boto3
    import botocore.config as botocore_config
    import botocore.exceptions as botocore_errors
    from boto3 import exceptions as boto3_errors
    from boto3.s3 import transfer
    from urllib3 import exceptions as urllib3_errors
else:
    boto3 = LazyModule("boto3")
    botocore_config = LazyModule("botocore.config")
    botocore_errors = LazyModule("botocore.exceptions")
    boto3_errors = LazyModule("boto3.exceptions")
    transfer = LazyModule("boto3.s3.transfer")
    urllib3_errors = LazyModule("urllib3.exceptions")

_MISSING_CODES = frozenset({"NoSuchKey", "404", "NotFound"})
_EXISTS_CODES = frozenset({"PreconditionFailed", "412"})
_CONFLICT_CODES = frozenset({"ConditionalRequestConflict", "409"})
_REFUSED_CODES = frozenset(
    {"NoSuchBucket", "AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch"}
)
# The largest object that libcurl writes.
BYTES_MAX = 1024 * 1024
_CONNECT_MS, _TOTAL_MS = 5_000, 30_000
# A read of any size goes on for as long as bytes come.
_SILENCE_S = 30
_IDLE_HANDLES_MAX = 32
# Keys of which all S3 clients sign the same form; other characters are quoted differently.
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.~-]+(/[A-Za-z0-9_.~-]+)*")
_DOTS = re.compile(r"(^|/)\.\.?(/|$)")
_MEDIA_TYPE = "binary/octet-stream"
_HTTP_OK, _HTTP_DELETED, _HTTP_MISSING, _HTTP_CONFLICT, _HTTP_EXISTS = 200, 204, 404, 409, 412


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


def _create_session(region: str, keys: BucketKeys) -> "boto3.session.Session":
    return boto3.session.Session(
        aws_access_key_id=keys.access_key,
        aws_secret_access_key=keys.secret_key,
        aws_session_token=keys.session_token,
        region_name=region,
    )


def _create_client(
    session: "boto3.session.Session", *, endpoint: str | None, connections_max: int
) -> Any:
    return session.client(
        "s3",
        endpoint_url=endpoint,
        config=botocore_config.Config(
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


@cache
def _build_transfer_config() -> "transfer.TransferConfig":
    return transfer.TransferConfig(
        multipart_threshold=SPOOL_BYTES, multipart_chunksize=SPOOL_BYTES, use_threads=False
    )


class S3Objects:
    """One bucket."""

    def __init__(self, account: "S3Account", *, bucket: str, plain: "PlainRequests") -> None:
        self._account = account
        self._bucket = bucket
        self._plain = plain

    @property
    def _client(self) -> Any:
        return self._account.get_client()

    def translate_errors(self, key: str) -> AbstractContextManager[None]:
        """Translate what the client raises."""
        return translate_errors(self._bucket, key)

    def store_object(self, key: str, data: bytes, media_type: str) -> None:
        """Write an object, replacing the one before."""
        if self._plain.put_small(key, data, media_type=media_type, is_new=False):
            return
        self._client.put_object(Bucket=self._bucket, Key=key, Body=data, ContentType=media_type)

    def store_object_once(self, key: str, data: bytes) -> None:
        """Write an object; one that exists is a `FileExistsError` for `translate_errors`."""
        if self._plain.put_small(key, data, is_new=True):
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
            staging_file, self._bucket, key, ExtraArgs=arguments, Config=_build_transfer_config()
        )

    def discard_staged(self, staging_file: IO[bytes]) -> None:
        """Close what was staged; its file goes with it."""
        staging_file.close()

    def read_object(self, key: str) -> bytes:
        """Return an object."""
        content = self._plain.read_object(key)
        if content is not None:
            return content
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
            found = self._plain.find_object(key)
            if found is not None:
                return found
            with self.translate_errors(key):
                about = self._client.head_object(Bucket=self._bucket, Key=key)
        except KeyError:
            return None
        return ObjectInfo(
            key=key, stored_bytes=about["ContentLength"], modified_at=about["LastModified"]
        )

    def delete_object(self, key: str) -> None:
        """Remove an object; removing what is not there is no error."""
        if self._plain.delete_object(key):
            return
        self._client.delete_object(Bucket=self._bucket, Key=key)

    def move_object(self, key: str, to: str) -> None:
        """Copy an object within the bucket, then remove the first."""
        source = {"Bucket": self._bucket, "Key": key}
        self._client.copy(source, self._bucket, to, Config=_build_transfer_config())
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
    account = S3Account(
        endpoint=endpoint, region=region, keys=keys, connections_max=connections_max
    )
    plain = PlainRequests(
        find_endpoint=account.find_endpoint,
        region=region,
        bucket=bucket,
        keys=account.find_signing_keys,
    )
    return S3Objects(account, bucket=bucket, plain=plain)


class S3Account:
    """A login at a server; what boto3 alone can tell is asked of it, and not before."""

    def __init__(
        self, *, endpoint: str | None, region: str, keys: BucketKeys, connections_max: int
    ) -> None:
        self._endpoint = endpoint
        self._region = region
        self._keys = keys
        self._connections_max = connections_max
        self._lock = threading.Lock()
        self._opened: tuple[Any, Any] | None = None

    def get_client(self) -> Any:
        """Return the client of boto3, which the first call makes."""
        return self._open_session()[1]

    def find_endpoint(self) -> str:
        """Return the server's address; Amazon's depends on region and environment."""
        return self._endpoint or str(self.get_client().meta.endpoint_url)

    def find_signing_keys(self) -> "SigningKeys | None":
        """Return what signs requests now: the keys of the login, else those of a role."""
        access_key, secret_key, token = self._keys
        if access_key is not None and secret_key is not None:
            return SigningKeys(access_key=access_key, secret_key=secret_key, token=token)
        credentials = self._open_session()[0].get_credentials()
        if credentials is None:
            return None
        # Those of a role are renewed here when they are about to expire.
        frozen_credentials = credentials.get_frozen_credentials()
        return SigningKeys(
            access_key=frozen_credentials.access_key,
            secret_key=frozen_credentials.secret_key,
            token=frozen_credentials.token,
        )

    def _open_session(self) -> tuple[Any, Any]:
        # Several threads may be the first, and sessions are made by one at a time.
        with self._lock:
            if self._opened is None:
                session = _create_session(self._region, self._keys)
                client = _create_client(
                    session, endpoint=self._endpoint, connections_max=self._connections_max
                )
                self._opened = session, client
            return self._opened


@contextmanager
def translate_errors(bucket: str, key: str) -> Iterator[None]:
    """Raise `KeyError` for a missing object, `FileExistsError` for a taken name, else storage's."""
    try:
        yield
    except FileExistsError:
        raise
    except botocore_errors.ClientError as failure:
        raise _name_client_error(failure, bucket, key) from failure
    except botocore_errors.NoCredentialsError as failure:
        raise StorageMisconfigured(f"s3://{bucket}: {failure}") from failure
    except (
        botocore_errors.BotoCoreError,
        boto3_errors.Boto3Error,
        # A body that breaks off while it is read.
        urllib3_errors.HTTPError,
        OSError,
    ) as failure:
        raise StorageUnavailable(f"s3://{bucket}/{key}: {failure}") from failure


def _name_client_error(failure: "botocore_errors.ClientError", bucket: str, key: str) -> Exception:
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


class PlainRequests:
    """Asks one bucket for objects with plain keys; any thread may ask.

    `keys` gives what signs at the moment. What is refused or fails here somebody else must try.
    """

    def __init__(
        self,
        *,
        find_endpoint: Callable[[], str],
        region: str,
        bucket: str,
        keys: Callable[[], SigningKeys | None],
    ) -> None:
        self._find_endpoint = find_endpoint
        self._bucket = bucket
        self._signing = f"aws:amz:{region}:s3"
        self._keys = keys
        self._idle: dict[str, deque[pycurl.Curl]] = {
            method: deque(maxlen=_IDLE_HANDLES_MAX) for method in ("PUT", "GET", "HEAD", "DELETE")
        }

    def put_small(
        self, key: str, data: bytes, *, media_type: str = _MEDIA_TYPE, is_new: bool
    ) -> bool:
        """Write an object; False when somebody else must try.

        With `is_new` raises `FileExistsError` where there is one already.
        """
        if len(data) > BYTES_MAX:
            return False
        headers = [f"Content-Type: {media_type}"]
        if is_new:
            headers.append("If-None-Match: *")
        with self._send_request("PUT", key, headers=headers, data=data) as answer:
            if is_new and answer.status in {_HTTP_EXISTS, _HTTP_CONFLICT}:
                raise FileExistsError(key)
            return answer.status == _HTTP_OK

    def read_object(self, key: str) -> bytes | None:
        """Return an object; None when somebody else must try."""
        body = io.BytesIO()
        with self._send_request("GET", key, body=body) as answer:
            return body.getvalue() if answer.status == _HTTP_OK else None

    def find_object(self, key: str) -> ObjectInfo | None:
        """Describe an object; None when somebody else must try. Raises `KeyError`."""
        with self._send_request("HEAD", key) as answer:
            if answer.status == _HTTP_MISSING:
                raise KeyError(key)
            return answer.describe_object(key) if answer.status == _HTTP_OK else None

    def delete_object(self, key: str) -> bool:
        """Remove an object; False when somebody else must try."""
        with self._send_request("DELETE", key) as answer:
            return answer.status == _HTTP_DELETED

    @contextmanager
    def _send_request(
        self,
        method: str,
        key: str,
        *,
        headers: Sequence[str] = (),
        data: bytes = b"",
        body: io.BytesIO | None = None,
    ) -> Iterator["_Answer"]:
        """Yield the answer; its status is None where none came, or none was asked for."""
        keys = None
        if _PLAIN_KEY.fullmatch(key) and not _DOTS.search(key):
            keys = self._keys()
        if keys is None:
            yield _Answer(None)
            return
        try:
            curl = self._idle[method].pop()
        except IndexError:
            curl = self._create_handle(method)
        curl.setopt(pycurl.URL, f"{self._find_endpoint().rstrip('/')}/{self._bucket}/{key}")
        curl.setopt(pycurl.USERNAME, keys.access_key)
        curl.setopt(pycurl.PASSWORD, keys.secret_key)
        token = () if keys.token is None else (f"X-Amz-Security-Token: {keys.token}",)
        curl.setopt(pycurl.HTTPHEADER, ["Accept:", "Expect:", *headers, *token])
        # What a refusal says in many words, boto3 will ask for again.
        curl.setopt(pycurl.WRITEFUNCTION, len if body is None else body.write)
        if method == "PUT":
            curl.setopt(pycurl.POSTFIELDS, data)
        try:
            curl.perform()
        except pycurl.error:
            yield _Answer(None)
            return
        try:
            yield _Answer(curl)
        finally:
            self._idle[method].append(curl)

    def _create_handle(self, method: str) -> pycurl.Curl:
        curl = create_curl_handle()
        if method == "HEAD":
            curl.setopt(pycurl.NOBODY, 1)
            curl.setopt(pycurl.OPT_FILETIME, 1)
        else:
            curl.setopt(pycurl.CUSTOMREQUEST, method)
        curl.setopt(pycurl.AWS_SIGV4, self._signing)
        curl.setopt(pycurl.CONNECTTIMEOUT_MS, _CONNECT_MS)
        if method == "GET":
            curl.setopt(pycurl.LOW_SPEED_LIMIT, 1)
            curl.setopt(pycurl.LOW_SPEED_TIME, _SILENCE_S)
        else:
            curl.setopt(pycurl.TIMEOUT_MS, _TOTAL_MS)
        return curl


class _Answer:
    """What a request was answered; `status` is None where nothing came."""

    def __init__(self, curl: pycurl.Curl | None) -> None:
        self._curl = curl
        self.status: int | None = None if curl is None else curl.getinfo(pycurl.RESPONSE_CODE)

    def describe_object(self, key: str) -> ObjectInfo | None:
        """Describe the object by the headers of the answer; None where it lacks them."""
        if self._curl is None:
            return None
        stored_bytes = int(self._curl.getinfo(pycurl.CONTENT_LENGTH_DOWNLOAD_T))
        modified_s = int(self._curl.getinfo(pycurl.FILETIME_T))
        if min(stored_bytes, modified_s) < 0:
            return None
        modified_at = datetime.fromtimestamp(modified_s, UTC)
        return ObjectInfo(key=key, stored_bytes=stored_bytes, modified_at=modified_at)
