"""Objects in S3 buckets that playbooks name, with the credentials that they name."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from noetl_contracts import codec
from noetl_contracts.lru_cache import LruCache
from noetl_storage.payloads.s3 import open_client, translate_errors
from noetl_storage.payloads.thread_runner import ThreadRunner
from noetl_storage.ports.errors import StorageMisconfigured

R = TypeVar("R")

_CLIENTS_MAX = 16
_REGION_DEFAULT = "us-east-1"


class S3Buckets:
    """One client for each account in use; the least recently used one is dropped."""

    def __init__(self, *, threads: ThreadRunner) -> None:
        self._threads = threads
        self._client_by_account = LruCache[str, Any](entries_max=_CLIENTS_MAX)

    async def read_object(
        self, account: Mapping[str, Any], bucket: str, key: str, *, bytes_max: int
    ) -> bytes:
        """Return an object; raises `KeyError` when it is absent, `ValueError` when too large."""
        client = self._get_client(account)

        def get_object() -> bytes:
            with client.get_object(Bucket=bucket, Key=key)["Body"] as body:
                data: bytes = body.read(bytes_max + 1)
                return data

        data = await self._run_call(get_object, bucket, key)
        if len(data) > bytes_max:
            raise ValueError(f"s3://{bucket}/{key} has more than {bytes_max} bytes")
        return data

    async def write_object(
        self, account: Mapping[str, Any], bucket: str, key: str, data: bytes, *, media_type: str
    ) -> None:
        """Write an object, replacing the one before."""
        client = self._get_client(account)

        def put_object() -> None:
            client.put_object(Bucket=bucket, Key=key, Body=data, ContentType=media_type)

        await self._run_call(put_object, bucket, key)

    async def delete_object(self, account: Mapping[str, Any], bucket: str, key: str) -> None:
        """Remove an object; removing what is not there is no error."""
        client = self._get_client(account)

        def remove_object() -> None:
            client.delete_object(Bucket=bucket, Key=key)

        await self._run_call(remove_object, bucket, key)

    async def _run_call(self, call: Callable[[], R], bucket: str, key: str) -> R:
        def call_translated() -> R:
            with translate_errors(bucket, key):
                return call()

        return await self._threads.run_call(call_translated)

    def _get_client(self, account: Mapping[str, Any]) -> Any:
        # Without keys the client would take the worker's own, which are not the playbook's.
        access_key, secret_key = (
            _find_account_field(account, "access_key"),
            _find_account_field(account, "secret_key"),
        )
        if not access_key or not secret_key:
            raise StorageMisconfigured("the credential needs access_key and secret_key")
        name = codec.digest_hex(codec.encode_canonical(dict(account)))
        client = self._client_by_account.find_value(name)
        if client is None:
            try:
                client = open_client(
                    endpoint=_find_endpoint(account),
                    region=_find_account_field(account, "region") or _REGION_DEFAULT,
                    access_key=access_key,
                    secret_key=secret_key,
                    connections_max=8,
                )
            except ValueError as problem:
                text = f"the credential's region cannot be used: {problem}"
                raise StorageMisconfigured(text) from problem
            self._client_by_account.keep_value(name, client)
        return client


def _find_account_field(account: Mapping[str, Any], name: str) -> str | None:
    """Return a field of an account; a number is as good as its digits."""
    account_field = account.get(name)
    if isinstance(account_field, dict | list):
        raise StorageMisconfigured(f"the credential's {name} is not a text")
    return str(account_field) if account_field else None


def _find_endpoint(account: Mapping[str, Any]) -> str | None:
    endpoint = _find_account_field(account, "endpoint")
    if endpoint is None:
        return None
    try:
        parts = urlsplit(endpoint)
        is_address = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise StorageMisconfigured("the credential's endpoint is no http or https address")
    return endpoint


@asynccontextmanager
async def open_buckets(*, threads_max: int = 4) -> AsyncIterator[S3Buckets]:
    """Hold the threads of the bucket clients while the block runs."""
    threads = ThreadRunner(threads_max)
    try:
        yield S3Buckets(threads=threads)
    finally:
        await threads.close()
