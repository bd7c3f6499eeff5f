"""A bucket of the S3 server: the credential that opens it, and what is in it."""

from collections.abc import Mapping
from typing import Any

import obstore
from obstore.store import S3Store
from tests.support.servers import S3Server


def account_of(s3: S3Server) -> dict[str, Any]:
    """The fields of a credential of type s3."""
    return {
        "endpoint": s3.endpoint,
        "region": s3.region,
        "access_key": s3.access_key,
        "secret_key": s3.secret_key,
    }


def open_bucket(s3: S3Server, account: Mapping[str, Any] | None = None) -> S3Store:
    """The server's bucket, opened by another client than the one that is tested."""
    account = account or account_of(s3)
    return S3Store(
        s3.bucket,
        endpoint=s3.endpoint,
        access_key_id=account["access_key"],
        secret_access_key=account["secret_key"],
        region=s3.region,
        **({"session_token": account["session_token"]} if "session_token" in account else {}),
        client_options={"allow_http": True},
    )


def keys_of(bucket: S3Store, folder: str) -> list[str]:
    """The keys of a folder, in order."""
    return sorted(item["path"] for page in obstore.list(bucket, folder) for item in page)
