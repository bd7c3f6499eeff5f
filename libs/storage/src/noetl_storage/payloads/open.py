"""One address to one payload store: `file:///path`, `s3://bucket?endpoint=…&region=…`, `memory://`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from noetl_storage.errors import StorageMisconfigured
from noetl_storage.payloads.executor import Threads
from noetl_storage.payloads.filesystem import FilesystemPayloads
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.payloads.s3 import S3Payloads, open_client
from noetl_storage.ports import Payloads

_FORMS = "file:///absolute/path, s3://bucket?endpoint=<url>&region=<name>, or memory://"
_REGION_DEFAULT = "us-east-1"


@asynccontextmanager
async def open_payloads(
    url: str,
    *,
    access_key: str | None = None,
    secret_key: str | None = None,
    threads_max: int = 32,
    connect_s: float | None = None,
) -> AsyncIterator[Payloads]:
    """Open the store at an address; raises `StorageMisconfigured` for one that is not understood.

    Without keys S3 takes them from where its client usually looks (environment, profile, role).
    With `connect_s` it must answer within that time, else `StorageUnavailable` is raised.
    """
    parts = urlsplit(url)
    threads = Threads(threads_max)
    try:
        match parts.scheme:
            case "memory":
                yield MemoryPayloads()
            case "file" if not parts.netloc and parts.path.startswith("/"):
                yield FilesystemPayloads(Path(unquote(parts.path)), threads=threads)
            case "s3" if parts.netloc and parts.path in {"", "/"}:
                query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
                client = open_client(
                    endpoint=query.get("endpoint"),
                    region=query.get("region", _REGION_DEFAULT),
                    access_key=access_key,
                    secret_key=secret_key,
                    connections_max=threads_max,
                )
                store = S3Payloads(client, bucket=parts.netloc, threads=threads)
                if connect_s is not None:
                    await store.wait_reachable(connect_s=connect_s)
                yield store
            case _:
                raise StorageMisconfigured(f"{url!r:.200} is no payload store: use {_FORMS}")
    finally:
        threads.close()
