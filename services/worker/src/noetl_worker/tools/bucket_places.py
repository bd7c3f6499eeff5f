"""Objects of buckets as tasks name them, with the account that their credential opens."""

import re
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct

from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.sites import Site
from noetl_worker.keys.credential_vault import Vault

SCHEMES = ("s3", "gs")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_KINDS = {"s3": ("s3", "minio"), "gs": ("gcs_hmac",)}
_GCS = "https://storage.googleapis.com"


class BucketPlace(Struct, frozen=True, kw_only=True):
    """An object's bucket and key; `account` says where they are and who asks."""

    account: dict[str, Any]
    bucket: str
    key: str


async def find_place(
    uri: str, auth: Any, *, site: Site, vault: Vault, source: str, field: str
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
        raise ToolFailure(failure("validation", f"{uri!r:.200} is not {scheme}://bucket/key"))
    if auth is None:
        text = f"{uri!r:.200} needs '{field}': the name of one of type s3 or gcs_hmac"
        raise ToolFailure(failure("config", text, source=source))
    credential = await vault.resolve(auth, site)
    usable = _KINDS[parts.scheme]
    if credential.kind not in usable or not credential.version:
        text = (
            f"credential '{credential.name}' is of type '{credential.kind}', which "
            f"{parts.scheme}:// cannot use: register one of type {' or '.join(usable)}"
        )
        raise ToolFailure(failure("config", text, source=source))
    account: dict[str, Any] = {
        name: credential.fields[name]
        for name in ("endpoint", "region", "access_key", "secret_key")
        if name in credential.fields
    }
    if parts.scheme == "gs":
        account.setdefault("endpoint", _GCS)
    return BucketPlace(account=account, bucket=bucket, key=key)
