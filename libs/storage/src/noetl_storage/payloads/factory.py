"""One address to one payload store: a folder, a bucket of S3, Google or Azure, or memory."""

import importlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from noetl_storage.payloads.bucket_keys import BucketKeys
from noetl_storage.payloads.deferred_objects import defer_bucket
from noetl_storage.payloads.filesystem import FilesystemPayloads
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.payloads.objects import Objects
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.payloads.thread_runner import ThreadRunner
from noetl_storage.ports.errors import StorageMisconfigured
from noetl_storage.ports.payload_ports import ObjectSeals, PayloadTier

_FORMS = (
    "file:///absolute/path, s3://bucket?endpoint=<url>&region=<name>, gs://bucket, "
    "azure://container?account=<name>, or memory://"
)
_REGION_DEFAULT = "us-east-1"
# The extra, and module, of an adapter that is imported only where an address names it.
_EXTRAS = {"gs": ("gcs", "Google storage"), "azure": ("azure", "Azure storage")}
_S3 = "noetl_storage.payloads.s3"
_ENDPOINT = re.compile(r"https?://[^/?#\s]+(/[^?#\s]*)?")


@asynccontextmanager
async def open_payloads(
    url: str,
    *,
    access_key: str | None = None,
    secret_key: str | None = None,
    session_token: str | None = None,
    threads_max: int = 32,
    connect_s: float | None = None,
    seals: ObjectSeals | None = None,
) -> AsyncIterator[PayloadStore]:
    """Open the store at an address; raises `StorageMisconfigured` for one that is not understood.

    Short-lived keys of S3 come with a `session_token`. Without keys S3 takes them from where its
    client usually looks (environment, profile, role).
    With `connect_s` it must answer within that time, else `StorageUnavailable` is raised.
    """
    parts = urlsplit(url)
    threads = ThreadRunner(threads_max)
    try:
        match parts.scheme:
            case "memory":
                yield MemoryPayloads(seals=seals)
            case "file" if not parts.netloc and parts.path.startswith("/"):
                yield FilesystemPayloads(Path(unquote(parts.path)), threads=threads, seals=seals)
            case "s3" | "gs" | "azure" if parts.netloc and parts.path in {"", "/"}:
                store, store_text = _open_remote(
                    parts,
                    BucketKeys(access_key, secret_key, session_token),
                    threads=threads,
                    count=threads_max,
                    seals=seals,
                )
                if connect_s is not None:
                    await store.wait_reachable(connect_s=connect_s, where=store_text)
                yield store
            case _:
                raise StorageMisconfigured(f"{url!r:.200} is no payload store: use {_FORMS}")
    finally:
        await threads.close()


def find_store_tier(url: str) -> PayloadTier:
    """Tell what kind of place an address of a store names; `open_payloads` refuses bad ones."""
    match urlsplit(url).scheme:
        case "memory":
            return PayloadTier.MEMORY
        case "file":
            return PayloadTier.DISK
        case _:
            return PayloadTier.OBJECT_STORE


def _open_remote(
    parts: SplitResult,
    keys: BucketKeys,
    *,
    threads: ThreadRunner,
    count: int,
    seals: ObjectSeals | None,
) -> tuple[PayloadStore, str]:
    """Return a store on a server, and the words for where that is."""
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if parts.scheme in _EXTRAS:
        extra, store_kind = _EXTRAS[parts.scheme]
        opened = _load_adapter(parts.scheme, extra).open_store(
            parts.netloc, query, secret_key=keys.secret_key, threads=threads, seals=seals
        )
        return opened, f"{store_kind} at {parts.netloc}"
    endpoint, region = query.get("endpoint"), query.get("region", _REGION_DEFAULT)
    if endpoint is not None and not _ENDPOINT.fullmatch(endpoint):
        raise StorageMisconfigured(
            f"the endpoint {endpoint!r:.200} is no address: use http://host:port or https://host"
        )

    def open_bucket() -> Objects:
        # Its client takes 30 MiB and half a second of a processor, and a projector rarely needs it.
        bucket: Objects = importlib.import_module(_S3).open_bucket(
            parts.netloc,
            endpoint=endpoint,
            region=region,
            keys=keys,
            connections_max=count,
        )
        return bucket

    store = PayloadStore(defer_bucket(open_bucket), runner=threads, seals=seals)
    return store, f"S3 at {endpoint or region}"


def _load_adapter(scheme: str, extra: str) -> Any:
    """Find the adapter of an extra that few install."""
    try:
        return importlib.import_module(f"noetl_storage.payloads.{extra}")
    except ImportError as failure:
        raise StorageMisconfigured(
            f"payloads at {scheme}:// need the client of that cloud: install noetl-storage[{extra}]"
        ) from failure
