"""Reads scripts from buckets of S3 and compatible stores, with a credential of the task."""

import re
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.errors import Permanent, Retryable
from noetl_contracts.log_chunks import NOTICE
from noetl_contracts.transient_objects import build_pin_name
from noetl_storage.ports.ledger_ports import Buckets
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.unit_identity import UnitScope
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.tools.calls.call import Call
from noetl_worker.tools.calls.references import ReferenceReader

SCHEMES = ("s3", "gs")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KINDS = {"s3": ("s3", "minio"), "gs": ("gcs_hmac",)}
_GCS = "https://storage.googleapis.com"


class BucketPlace(Struct, frozen=True, kw_only=True):
    """An object's bucket and key; `account` says where they are and who asks."""

    account: dict[str, Any]
    bucket: str
    key: str


async def get_bucket_place(
    uri: str, auth: Any, *, site: UnitScope, vault: CredentialVault, source: str, field: str
) -> BucketPlace:
    """Open what `uri` and `auth` mean; `field` is where the credential is written.

    Raises `ToolFailure`.
    """
    try:
        parts = urlsplit(uri)
    except ValueError:
        parts = urlsplit("")
    bucket, key = parts.netloc, parts.path.removeprefix("/")
    if parts.scheme not in SCHEMES or not _BUCKET.fullmatch(bucket) or not key:
        scheme = parts.scheme if parts.scheme in SCHEMES else SCHEMES[0]
        raise ToolFailure(build_error("validation", f"{uri!r:.200} is not {scheme}://bucket/key"))
    if auth is None:
        text = f"{uri!r:.200} needs '{field}': the name of one of type s3 or gcs_hmac"
        raise ToolFailure(build_error("config", text, source=source))
    credential = await vault.resolve_auth(auth, site)
    usable = _KINDS[parts.scheme]
    if credential.kind not in usable or not credential.version:
        text = (
            f"credential '{credential.name}' is of type '{credential.kind}', which "
            f"{parts.scheme}:// cannot use: register one of type {' or '.join(usable)}"
        )
        raise ToolFailure(build_error("config", text, source=source))
    account: dict[str, Any] = {
        name: credential.fields[name]
        for name in ("endpoint", "region", "access_key", "secret_key")
        if name in credential.fields
    }
    if parts.scheme == "gs":
        account.setdefault("endpoint", _GCS)
    return BucketPlace(account=account, bucket=bucket, key=key)


class BucketScripts:
    """Reads scripts from S3 and what speaks like it."""

    def __init__(
        self, buckets: Buckets, vault: CredentialVault, references_: ReferenceReader
    ) -> None:
        self._buckets = buckets
        self._vault = vault
        self._references = references_

    async def read_script(self, uri: Any, auth: Any, call: Call, *, bytes_max: int) -> bytes:
        """Return the text that the execution has read first; raises `ToolFailure`."""
        store = self._references.get_payloads(call.site)
        name = build_pin_name(call.site.execution_id, uri=str(uri), auth=str(auth))
        data = await store.find_named(name)
        if data is None:
            object_data = await self._read_object(uri, auth, call, bytes_max=bytes_max)
            # Of two workers that read at the same moment, one is first.
            pinned_data = await store.put_named(name, object_data)
            data = object_data if pinned_data is None else pinned_data
        digest, size = codec.digest_hex(data), len(data)
        call.log.add_line(NOTICE, f"script {uri} {digest} {size} bytes")
        return data

    async def _read_object(self, uri: Any, auth: Any, call: Call, *, bytes_max: int) -> bytes:
        place = await get_bucket_place(
            str(uri),
            auth,
            site=call.site,
            vault=self._vault,
            source="script",
            field="script.source.auth",
        )
        try:
            return await self._buckets.read_object(
                place.account, place.bucket, place.key, bytes_max=bytes_max
            )
        except KeyError as problem:
            text = f"there is no script at {uri!r:.200}"
            raise ToolFailure(build_error("not_found", text, source="script")) from problem
        except ValueError as problem:
            text = f"script {uri!r:.200} has more than {bytes_max} bytes"
            raise ToolFailure(build_error("limit", text, code="SCRIPT_BYTES")) from problem
        except Permanent as problem:
            text = f"script {uri!r:.200} cannot be read: {problem}"
            raise ToolFailure(build_error("config", text, source="script")) from problem
        except Retryable as problem:
            text = f"script {uri!r:.200} cannot be read now: {problem}"
            raise ToolFailure(build_error("storage_access", text, source="script")) from problem
