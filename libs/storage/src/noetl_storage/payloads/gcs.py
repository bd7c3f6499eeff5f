"""Payloads in Google Cloud Storage."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import IO, Any

import google.api_core.exceptions
import google.auth.exceptions
import requests
import urllib3
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage.retry import DEFAULT_RETRY

from noetl_storage.payloads.objects import (
    CHUNK_BYTES,
    SPOOL_BYTES,
    ObjectInfo,
    ObjectReader,
    is_request_refused,
)
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.payloads.thread_runner import ThreadRunner
from noetl_storage.ports.errors import StorageMisconfigured, StorageRefused, StorageUnavailable
from noetl_storage.ports.payload_ports import ObjectSeals

_TIMEOUT_S = (5, 30)
_RETRY = DEFAULT_RETRY.with_timeout(30)
# We check a stronger digest ourselves.
_CALL: dict[str, Any] = {"timeout": _TIMEOUT_S, "retry": _RETRY}
_NO_TIME = datetime(1970, 1, 1, tzinfo=UTC)


def open_store(
    name: str,
    query: Mapping[str, str],
    *,
    secret_key: str | None,  # noqa: ARG001 - Google's clients find their credentials themselves
    threads: ThreadRunner,
    seals: ObjectSeals | None,
) -> "GcsPayloads":
    """Open `gs://<bucket>?project=…&endpoint=…&anonymous=true`; all of the query is optional."""
    bucket = open_bucket(
        name,
        endpoint=query.get("endpoint"),
        project=query.get("project"),
        is_public=query.get("anonymous") == "true",
    )
    return GcsPayloads(bucket, threads=threads, seals=seals)


def open_bucket(name: str, *, endpoint: str | None, project: str | None, is_public: bool) -> Any:
    """Make a bucket's client; raises `StorageMisconfigured` without usable credentials.

    They are taken from where Google's clients usually look, unless the bucket is public.
    """
    credentials = AnonymousCredentials() if is_public else None  # type: ignore[no-untyped-call]  # Google's
    options = {"api_endpoint": endpoint} if endpoint else None
    try:
        client = storage.Client(
            project=project or "noetl", credentials=credentials, client_options=options
        )
    except google.auth.exceptions.GoogleAuthError as failure:
        raise StorageMisconfigured(f"gs://{name}: {failure}") from failure
    return client.bucket(name)


class GcsObjects:
    """One bucket."""

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket

    def translate_errors(self, key: str) -> AbstractContextManager[None]:
        """Translate what the client raises."""
        return _translate_errors(f"gs://{self._bucket.name}", key)

    def store_object(self, key: str, data: bytes, media_type: str) -> None:
        """Write an object, replacing the one before."""
        self._bucket.blob(key).upload_from_string(
            data, content_type=media_type, checksum=None, **_CALL
        )

    def store_object_once(self, key: str, data: bytes) -> None:
        """Write an object; one that exists is a `FileExistsError` for `translate_errors`."""
        self._bucket.blob(key).upload_from_string(
            data, checksum=None, if_generation_match=0, **_CALL
        )

    def open_staging(self) -> IO[bytes]:
        """Gather in memory, beyond a few megabytes in a file."""
        return tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)

    def store_staged(self, key: str, staging_file: IO[bytes], media_type: str) -> None:
        """Upload what was staged, in parts when it is large."""
        blob = self._bucket.blob(key, chunk_size=SPOOL_BYTES)
        blob.upload_from_file(
            staging_file, rewind=True, content_type=media_type, checksum=None, **_CALL
        )

    def discard_staged(self, staging_file: IO[bytes]) -> None:
        """Close what was staged; its file goes with it."""
        staging_file.close()

    def read_object(self, key: str) -> bytes:
        """Return an object."""
        data: bytes = self._bucket.blob(key).download_as_bytes(
            raw_download=True, checksum=None, **_CALL
        )
        return data

    def open_object(self, key: str) -> ObjectReader:
        """Begin to read an object; every piece is of the version that was there at first."""
        blob = self._bucket.get_blob(key, **_CALL)
        if blob is None:
            raise KeyError(key)
        pieces: ObjectReader = blob.open("rb", chunk_size=CHUNK_BYTES, raw_download=True, **_CALL)
        return pieces

    def find_object(self, key: str) -> ObjectInfo | None:
        """Describe an object, or return None."""
        blob = self._bucket.get_blob(key, **_CALL)
        return None if blob is None else _describe_blob(blob)

    def delete_object(self, key: str) -> None:
        """Remove an object; removing what is not there is no error."""
        try:
            self._bucket.blob(key).delete(**_CALL)
        except google.api_core.exceptions.NotFound:
            return

    def move_object(self, key: str, to: str) -> None:
        """Copy an object within the bucket, then remove the first."""
        source, target = self._bucket.blob(key), self._bucket.blob(to)
        token, _, _ = target.rewrite(source, **_CALL)
        while token is not None:
            token, _, _ = target.rewrite(source, token=token, **_CALL)
        self.delete_object(key)

    def iterate_objects_under(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield every object whose key begins with a prefix and lies behind another, in order."""
        start = {"start_offset": after} if after else {}
        for blob in self._bucket.list_blobs(prefix=prefix, **start, **_CALL):
            # The listing begins with the key itself.
            if blob.name > after:
                yield _describe_blob(blob)


class GcsPayloads(PayloadStore):
    """Payloads in one bucket; the blocking client runs in bounded threads."""

    def __init__(
        self, bucket: Any, *, threads: ThreadRunner, seals: ObjectSeals | None = None
    ) -> None:
        super().__init__(GcsObjects(bucket), runner=threads, seals=seals)


def _describe_blob(blob: Any) -> ObjectInfo:
    return ObjectInfo(
        key=blob.name, stored_bytes=blob.size or 0, modified_at=blob.updated or _NO_TIME
    )


@contextmanager
def _translate_errors(bucket_text: str, key: str) -> Iterator[None]:
    try:
        yield
    except google.api_core.exceptions.NotFound as failure:
        if "bucket" in str(failure.message).lower():
            raise StorageMisconfigured(
                f"{bucket_text} is not there: {failure.message}"
            ) from failure
        raise KeyError(key) from failure
    except google.api_core.exceptions.PreconditionFailed as failure:
        raise FileExistsError(key) from failure
    except (
        google.api_core.exceptions.Forbidden,
        google.api_core.exceptions.Unauthorized,
        google.auth.exceptions.GoogleAuthError,
    ) as failure:
        raise StorageMisconfigured(f"{bucket_text} refused {key}: {failure}") from failure
    except google.api_core.exceptions.GoogleAPICallError as failure:
        kind = StorageRefused if is_request_refused(failure.code) else StorageUnavailable
        raise kind(f"{bucket_text}/{key}: {failure}") from failure
    except (
        google.api_core.exceptions.GoogleAPIError,
        requests.exceptions.RequestException,
        urllib3.exceptions.HTTPError,
        OSError,
    ) as failure:
        raise StorageUnavailable(f"{bucket_text}/{key}: {failure}") from failure
