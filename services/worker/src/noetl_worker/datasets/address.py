"""Where a dataset is: a folder, or a prefix of a bucket, opened as an object store."""

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import obstore
import pyarrow as pa
from msgspec import Struct
from obstore import exceptions
from obstore.store import AzureStore, LocalStore, MemoryStore, S3Store

from noetl_worker.datasets.problems import DatasetProblem

_GCS = "https://storage.googleapis.com"
_REGION = "us-east-1"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_CONTAINER = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]@[a-z0-9]{3,24}\.dfs\.[a-z0-9.-]+")
# What a writer holds: buckets take no smaller part of a larger object.
_PART_BYTES = 5 * 1024 * 1024
# Signs that make a component of a path a pattern.
PATTERN_SIGNS = re.compile(r"[*?\[]")
# The field of an account that holds what gives its client new keys, in place of keys that end.
PROVIDER = "credential_provider"
_RETRIES: Any = {"max_retries": 8, "retry_timeout": timedelta(seconds=60)}


class DatasetAddress(Struct, frozen=True, kw_only=True):
    """A place as a plan carries it: no secret is in it.

    `path` is a key of the bucket, or an absolute path, and may hold a pattern. `credential` is the
    name of the credential that opens the bucket. People are not shown the `base` of local paths.
    A file of a server has the scheme `web`, the server as its bucket, and its bytes in the account.
    """

    scheme: Literal["file", "s3", "gs", "abfss", "web"]
    path: str
    bucket: str = ""
    credential: str | None = None
    base: str = ""

    @property
    def shown_path(self) -> str:
        """Write the address as people do."""
        return self.show_key(self.path)

    def show_key(self, key: str) -> str:
        """Write the place of one object as people do."""
        if self.scheme == "file":
            return key.removeprefix(self.base)
        return f"{self.bucket if self.scheme == 'web' else f'{self.scheme}://{self.bucket}'}/{key}"

    @property
    def static_path(self) -> str:
        """Return the folder above the first component that is a pattern."""
        parts = self.path.split("/")
        for index, part in enumerate(parts):
            if PATTERN_SIGNS.search(part):
                return "/".join(parts[:index])
        return self.path.rstrip("/")

    @property
    def root_path(self) -> str:
        """Return the folder of the whole dataset: the one above its first `name=value` folder."""
        parts = self.static_path.removeprefix(self.base).split("/")
        for index, part in enumerate(parts):
            if "=" in part:
                return (self.base + "/".join(parts[:index])).rstrip("/")
        return self.static_path


def parse_bucket_address(uri: str, credential: str | None) -> DatasetAddress:
    """Read an address of a bucket; raises `DatasetProblem`."""
    parts = urlsplit(uri)
    key = uri.partition("://")[2].partition("/")[2]
    if any(part in (".", "..") for part in key.split("/")):
        raise DatasetProblem("validation", f"{uri!r:.200} has a part that is '.' or '..'")
    if parts.scheme == "abfss":
        return _parse_azure_address(uri, parts.netloc, key, credential)
    if parts.scheme not in ("s3", "gs") or not _BUCKET.fullmatch(parts.netloc) or not key:
        raise DatasetProblem("validation", f"{uri!r:.200} is not s3://bucket/folder/")
    scheme: Literal["s3", "gs"] = "s3" if parts.scheme == "s3" else "gs"
    return DatasetAddress(scheme=scheme, bucket=parts.netloc, path=key, credential=credential)


def _parse_azure_address(uri: str, netloc: str, key: str, credential: str | None) -> DatasetAddress:
    """Read an address of Azure, whose bucket is a container of an account."""
    if not _CONTAINER.fullmatch(netloc) or not key:
        text = f"{uri!r:.200} is not abfss://container@account.dfs.core.windows.net/folder/"
        raise DatasetProblem("validation", text)
    return DatasetAddress(scheme="abfss", bucket=netloc, path=key, credential=credential)


def parse_web_address(url: str) -> DatasetAddress:
    """Read the address of a file on a server; raises `DatasetProblem`.

    What may be secret in it, user and query, is in no address.
    """
    parts = urlsplit(url)
    shown_url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    key = parts.path.lstrip("/")
    if not key or key.endswith("/") or PATTERN_SIGNS.search(key):
        text = f"{shown_url!r:.200} is not one file: name it, as https://example.com/rows.csv"
        raise DatasetProblem("validation", text)
    server = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return DatasetAddress(scheme="web", bucket=server, path=key)


def build_local_address(path: Path, name: str = "", pattern: str = "") -> DatasetAddress:
    """Return the address of a local path, whose owner has checked where it leads.

    `name` is the end of the path, as the playbook has it; a `pattern` may follow.
    """
    base = str(path).removesuffix(name) if name else ""
    return DatasetAddress(scheme="file", path=f"{path}{pattern}", base=base)


class OpenStore:
    """An address, opened; its methods block and raise `DatasetProblem` that names the object."""

    def __init__(self, address: DatasetAddress, account: Mapping[str, Any] | None) -> None:
        self.address = address
        self._store = _open_client(address, account or {})

    @property
    def is_local(self) -> bool:
        """Tell whether the objects are files of this machine."""
        return self.address.scheme == "file"

    def list_objects(self, folder: str) -> Iterator[tuple[str, int, datetime]]:
        """Yield key, size in bytes and time of each object below a folder, in order of keys."""
        objects: list[tuple[str, int, datetime]] = []
        with self.translate_errors(folder):
            for page in obstore.list(self._store, prefix=_get_key(folder) or None):
                objects += [(item["path"], item["size"], item["last_modified"]) for item in page]
        prefix = "/" if self.is_local else ""
        for path, size, modified in sorted(objects):
            yield f"{prefix}{path}", size, modified

    def find_size(self, key: str) -> int | None:
        """Return the size of an object in bytes, None when there is none."""
        with self.translate_errors(key):
            try:
                return int(obstore.head(self._store, _get_key(key))["size"])
            except (exceptions.NotFoundError, FileNotFoundError):
                return None

    def read_object(self, key: str) -> bytes:
        """Return a small object whole."""
        with self.translate_errors(key):
            return bytes(obstore.get(self._store, _get_key(key)).bytes())

    def open_object(self, key: str) -> pa.NativeFile:
        """Open an object for reading; it can seek."""
        with self.translate_errors(key):
            if self.is_local:
                return pa.OSFile(key)
            return pa.PythonFile(_ObjectFile(self, key))

    def open_reader(self, key: str) -> Any:
        """Open an object of a bucket as its client reads it."""
        return obstore.open_reader(self._store, _get_key(key))

    def open_writer(self, key: str) -> Any:
        """Open an object for writing: it is there when the writer is closed, not before."""
        with self.translate_errors(key):
            if self.is_local:
                Path(key).parent.mkdir(parents=True, exist_ok=True)
            return obstore.open_writer(self._store, _get_key(key), buffer_size=_PART_BYTES)

    def put_object(self, key: str, data: bytes) -> None:
        """Write a small object, replacing the one before."""
        with self.translate_errors(key):
            obstore.put(self._store, _get_key(key), data)

    def create_object(self, key: str, data: bytes) -> bool:
        """Write a small object unless there is one: tell whether it was written."""
        with self.translate_errors(key):
            try:
                obstore.put(self._store, _get_key(key), data, mode="create")
            except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
                return False
        return True

    def delete_objects(self, keys: list[str]) -> None:
        """Remove objects; one that is gone is no error."""
        for start in range(0, len(keys), 1_000):
            part = [_get_key(key) for key in keys[start : start + 1_000]]
            with self.translate_errors(keys[start]):
                try:
                    obstore.delete(self._store, part)
                except (exceptions.NotFoundError, FileNotFoundError):
                    self._delete_each(part)

    def _delete_each(self, keys: list[str]) -> None:
        for key in keys:
            try:
                obstore.delete(self._store, key)
            except (exceptions.NotFoundError, FileNotFoundError):
                continue

    @contextmanager
    def translate_errors(self, key: str) -> Iterator[None]:
        """Turn what a reader or writer of an object raises into `DatasetProblem`."""
        shown_key = self.address.show_key(key)
        try:
            yield
        except DatasetProblem:
            raise
        except (exceptions.NotFoundError, FileNotFoundError) as problem:
            raise DatasetProblem("not_found", f"there is nothing at {shown_key}") from problem
        except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError) as problem:
            raise self._build_refusal(shown_key) from problem
        except (exceptions.BaseError, OSError) as problem:
            kind, reason = classify_store_text(str(problem))
            if kind == "auth":
                raise self._build_refusal(shown_key) from problem
            raise DatasetProblem(kind, f"{shown_key} cannot be used now: {reason}") from problem

    def _build_refusal(self, shown_key: str) -> DatasetProblem:
        text = f"{shown_key} is refused to credential '{self.address.credential}': check its keys"
        return DatasetProblem("auth", text)


class _ObjectFile(io.RawIOBase):
    """An object as a file that Arrow reads."""

    def __init__(self, store: "OpenStore", key: str) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._inner: Any = store.open_reader(key)

    def readable(self) -> bool:
        """Say that it is read."""
        return True

    def seekable(self) -> bool:
        """Say that it can go to any place."""
        return True

    def read(self, size: int = -1) -> bytes:
        """Read at most so many bytes; raises `DatasetProblem`, unlike what decodes them."""
        with self._store.translate_errors(self._key):
            return bytes(self._inner.read(None if size is None or size < 0 else size))

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place."""
        return int(self._inner.seek(offset, whence))

    def tell(self) -> int:
        """Return the place."""
        return int(self._inner.tell())


def classify_store_text(text: str) -> tuple[str, str]:
    """Return the kind of error and the reason that a store's answer means."""
    text = " ".join(text.split())
    # What a server said of the keys comes as the text of its answer.
    if "InvalidAccessKeyId" in text or "SignatureDoesNotMatch" in text or "AccessDenied" in text:
        return "auth", "the store refuses the credential's keys"
    if "AuthenticationFailed" in text or "AuthorizationFailure" in text:
        return "auth", "the store refuses the credential's keys"
    if "NoSuchBucket" in text or "ContainerNotFound" in text:
        return "not_found", "there is no such bucket"
    return "storage_access", text[:400]


def _get_key(path: str) -> str:
    """Return a path as obstore names it: relative to the store's root."""
    return path.strip("/")


def _open_client(address: DatasetAddress, account: Mapping[str, Any]) -> Any:
    if address.scheme == "file":
        return LocalStore("/")
    if address.scheme == "web":
        downloaded = MemoryStore()
        obstore.put(downloaded, _get_key(address.path), account["data"])
        return downloaded
    if address.scheme == "abfss":
        return _open_container(address, account)
    options: dict[str, Any] = dict(build_account_options(address, account))
    is_plain = options.get("endpoint", "").startswith("http://")
    if account.get(PROVIDER) is not None:
        for name in ("access_key_id", "secret_access_key", "session_token"):
            options.pop(name, None)
        options[PROVIDER] = account[PROVIDER]
    return S3Store(
        address.bucket,
        **options,
        client_options={"allow_http": is_plain, "timeout": "60s"},
        retry_config=_RETRIES,
    )


def _open_container(address: DatasetAddress, account: Mapping[str, Any]) -> Any:
    container, _, host = address.bucket.partition("@")
    name = host.partition(".")[0]
    if not account.get("key") or account.get("account") != name:
        text = f"credential '{address.credential}' needs the key of account '{name}', and its name"
        raise DatasetProblem("config", text)
    endpoint = str(account.get("endpoint") or "")
    options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    try:
        return AzureStore(
            container,
            account_name=name,
            account_key=str(account["key"]),
            **options,
            client_options={"allow_http": endpoint.startswith("http://"), "timeout": "60s"},
            retry_config=_RETRIES,
        )
    except exceptions.BaseError as problem:
        # The error itself may show a part of the key.
        text = f"the key of credential '{address.credential}' is none of Azure's: copy it whole"
        raise DatasetProblem("config", text) from problem


def build_account_options(address: DatasetAddress, account: Mapping[str, Any]) -> dict[str, str]:
    """Return the keys and the server of an account as object stores name them.

    Raises `DatasetProblem` where it has no keys: a client would take the worker's own.
    """
    endpoint = str(account.get("endpoint") or (_GCS if address.scheme == "gs" else ""))
    access_key, secret_key = account.get("access_key"), account.get("secret_key")
    if not access_key or not secret_key:
        text = f"credential '{address.credential}' needs access_key and secret_key"
        raise DatasetProblem("config", text)
    options = {
        "access_key_id": str(access_key),
        "secret_access_key": str(secret_key),
        "region": str(account.get("region") or _REGION),
    }
    if account.get("session_token"):
        options["session_token"] = str(account["session_token"])
    if endpoint:
        options["endpoint"] = endpoint
    return options
