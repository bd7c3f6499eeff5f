"""Payloads in Azure Blob Storage."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import IO, Any

import azure.core.exceptions
from azure.storage.blob import ContainerClient, ContentSettings

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

_CONNECT_S, _READ_S, _RETRIES = 5, 30, 3
_COPY_POLL_S = 0.2
_COPY_POLLS_MAX = 9_000
_REFUSED = (401, 403)


def open_store(
    name: str,
    query: Mapping[str, str],
    *,
    secret_key: str | None,
    threads: ThreadRunner,
    seals: ObjectSeals | None,
) -> "AzurePayloads":
    """Open `azure://<container>?account=…&endpoint=…`; the endpoint is optional."""
    container = open_container(
        name,
        account=query.get("account"),
        endpoint=query.get("endpoint"),
        secret_key=secret_key,
    )
    return AzurePayloads(container, threads=threads, seals=seals)


def open_container(
    name: str, *, account: str | None, endpoint: str | None, secret_key: str | None
) -> Any:
    """Make a container's client; raises `StorageMisconfigured` without account or key.

    The key is the account's, or a token of a shared access signature.
    """
    if not account or not secret_key:
        raise StorageMisconfigured(
            f"azure://{name} needs ?account=<name> and the account's key in PAYLOAD_SECRET_KEY"
        )
    credential: Any = secret_key
    if "sig=" not in secret_key:
        credential = {"account_name": account, "account_key": secret_key}
    return ContainerClient(
        account_url=endpoint or f"https://{account}.blob.core.windows.net",
        container_name=name,
        credential=credential,
        max_single_put_size=SPOOL_BYTES,
        max_block_size=SPOOL_BYTES,
        max_single_get_size=CHUNK_BYTES,
        max_chunk_get_size=CHUNK_BYTES,
        connection_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retry_total=_RETRIES,
    )


class AzureObjects:
    """One container."""

    def __init__(self, container: Any) -> None:
        self._container = container

    def translate_errors(self, key: str) -> AbstractContextManager[None]:
        """Translate what the client raises."""
        return _translate_errors(f"azure://{self._container.container_name}", key)

    def store_object(self, key: str, data: bytes, media_type: str) -> None:
        """Write a blob, replacing the one before."""
        self._upload_blob(key, data, media_type)

    def store_object_once(self, key: str, data: bytes) -> None:
        """Write a blob; one that exists is a `FileExistsError` for `translate_errors`."""
        self._container.get_blob_client(key).upload_blob(data, overwrite=False)

    def open_staging(self) -> IO[bytes]:
        """Gather in memory, beyond a few megabytes in a file."""
        return tempfile.SpooledTemporaryFile(max_size=SPOOL_BYTES)

    def store_staged(self, key: str, staging_file: IO[bytes], media_type: str) -> None:
        """Upload what was staged, in blocks when it is large."""
        staging_file.seek(0)
        self._upload_blob(key, staging_file, media_type)

    def discard_staged(self, staging_file: IO[bytes]) -> None:
        """Close what was staged; its file goes with it."""
        staging_file.close()

    def read_object(self, key: str) -> bytes:
        """Return a blob."""
        data: bytes = self._container.get_blob_client(key).download_blob().readall()
        return data

    def open_object(self, key: str) -> ObjectReader:
        """Begin to read a blob."""
        return _BlobReader(self._container.get_blob_client(key).download_blob())

    def find_object(self, key: str) -> ObjectInfo | None:
        """Describe a blob, or return None."""
        try:
            about = self._container.get_blob_client(key).get_blob_properties()
        except azure.core.exceptions.ResourceNotFoundError:
            return None
        return ObjectInfo(key=key, stored_bytes=about.size, modified_at=about.last_modified)

    def delete_object(self, key: str) -> None:
        """Remove a blob; removing what is not there is no error."""
        try:
            self._container.get_blob_client(key).delete_blob()
        except azure.core.exceptions.ResourceNotFoundError:
            return

    def move_object(self, key: str, to: str) -> None:
        """Copy a blob within the container, then remove the first."""
        target = self._container.get_blob_client(to)
        target.start_copy_from_url(self._container.get_blob_client(key).url)
        for _ in range(_COPY_POLLS_MAX):
            if target.get_blob_properties().copy.status == "success":
                self.delete_object(key)
                return
            time.sleep(_COPY_POLL_S)
        raise StorageUnavailable(f"{key} is still being copied")

    def iterate_objects_under(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        """Yield every blob whose key begins with a prefix and lies behind another, in order."""
        for blob in self._container.list_blobs(name_starts_with=prefix):
            if blob.name <= after:
                # The service begins at no key but the first.
                continue
            yield ObjectInfo(key=blob.name, stored_bytes=blob.size, modified_at=blob.last_modified)

    def _upload_blob(self, key: str, data: Any, media_type: str) -> None:
        self._container.get_blob_client(key).upload_blob(
            data, overwrite=True, content_settings=ContentSettings(content_type=media_type)
        )


class _BlobReader:
    """A download that is read piece by piece."""

    def __init__(self, downloader: Any) -> None:
        self._downloader = downloader

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes, and none at the end."""
        piece: bytes = self._downloader.read(size)
        return piece

    def close(self) -> None:
        """Stop reading: nothing is open between two pieces."""


class AzurePayloads(PayloadStore):
    """Payloads in one container; the blocking client runs in bounded threads."""

    def __init__(
        self, container: Any, *, threads: ThreadRunner, seals: ObjectSeals | None = None
    ) -> None:
        super().__init__(AzureObjects(container), runner=threads, seals=seals)


@contextmanager
def _translate_errors(container_text: str, key: str) -> Iterator[None]:
    try:
        yield
    except azure.core.exceptions.ResourceNotFoundError as failure:
        if _find_error_code(failure) == "ContainerNotFound":
            raise StorageMisconfigured(f"{container_text} is not there") from failure
        raise KeyError(key) from failure
    except azure.core.exceptions.ResourceExistsError as failure:
        raise FileExistsError(key) from failure
    except azure.core.exceptions.HttpResponseError as failure:
        if failure.status_code in _REFUSED:
            raise StorageMisconfigured(
                f"{container_text} refused {key}: {_find_error_code(failure)}"
            ) from failure
        kind = StorageRefused if is_request_refused(failure.status_code) else StorageUnavailable
        raise kind(f"{container_text}/{key}: {_find_error_code(failure) or failure}") from failure
    except (azure.core.exceptions.AzureError, OSError) as failure:
        raise StorageUnavailable(f"{container_text}/{key}: {failure}") from failure


def _find_error_code(failure: Exception) -> str:
    """Return Azure's own word for a failure; the client adds it at run time."""
    return str(getattr(failure, "error_code", ""))
