"""Asks AWS, and object stores that speak S3, about a credential's keys."""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError

from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.keys import aws_client
from noetl_worker.keys.credential_vault import Credential

_REGION_DEFAULT = "us-east-1"
_ENDPOINTS = {"gcs_hmac": "https://storage.googleapis.com"}
_SCHEMES = ("s3", "gs")
_REFUSED = frozenset(
    {
        *("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidClientTokenId", "ExpiredToken"),
        *("AuthFailure", "UnrecognizedClientException", "InvalidSecurity", "401", "403"),
    }
)
_DENIED = frozenset({"AccessDenied", "AllAccessDisabled"})
_MISSING = frozenset({"NoSuchBucket", "404"})


async def list_buckets(credential: Credential, url: str | None) -> dict[str, Any]:
    """List the buckets of the keys, or look into the bucket of `url`; raises `ToolFailure`."""
    bucket = None if url is None else _bucket_of(url)

    def ask() -> dict[str, Any]:
        client = aws_client.open_client(
            "s3",
            credential,
            region=_REGION_DEFAULT,
            endpoint=_ENDPOINTS.get(credential.kind),
        )
        server = urlsplit(client.meta.endpoint_url).netloc
        if bucket is not None:
            page = client.list_objects_v2(Bucket=bucket, MaxKeys=1)
            return {"server": server, "bucket": bucket, "is_empty": not page.get("KeyCount")}
        found = client.list_buckets()
        return {"server": server, "buckets": len(found.get("Buckets", ()))}

    return await asyncio.to_thread(_told, ask, credential, bucket)


async def ask_for_identity(credential: Credential) -> dict[str, Any]:
    """Ask STS whose the keys are; raises `ToolFailure`."""

    def ask() -> dict[str, Any]:
        client = aws_client.open_client("sts", credential)
        found = client.get_caller_identity()
        server = urlsplit(client.meta.endpoint_url).netloc
        return {"server": server, "account": found["Account"], "user": found["Arn"]}

    return await asyncio.to_thread(_told, ask, credential, None)


def _told(
    ask: Callable[[], dict[str, Any]], credential: Credential, bucket: str | None
) -> dict[str, Any]:
    """Ask, and say what the server or the way to it refuses; raises `ToolFailure`."""
    try:
        return ask()
    except ClientError as problem:
        code = str(problem.response.get("Error", {}).get("Code"))
        raise ToolFailure(_of_code(code, bucket)) from problem
    except (ParamValidationError, ValueError) as problem:
        raise credential.unusable(f"cannot be used: {problem}") from problem
    except BotoCoreError as problem:
        # What it is about is the address; it repeats no secret.
        text = f"the server cannot be asked: {problem}: check endpoint and region"
        raise ToolFailure(failure("connection", text, source="aws")) from problem


def _of_code(code: str, bucket: str | None) -> Any:
    if code in _REFUSED:
        text = f"the server answers {code}: check access_key and secret_key"
        return failure("auth", text, source="aws")
    if code in _DENIED and bucket is None:
        text = (
            f"the server answers {code}: these keys may not list the buckets; "
            "test them with one that they may read, --url s3://BUCKET"
        )
        return failure("auth", text, source="aws")
    if code in _DENIED:
        text = f"the server answers {code}: these keys may not list bucket {bucket!r:.80}"
        return failure("auth", text, source="aws")
    if code in _MISSING:
        return failure("not_found", f"there is no bucket {bucket!r:.80}", source="aws")
    return failure("connection", f"the server answers {code}", source="aws")


def _bucket_of(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in _SCHEMES or not parts.netloc:
        raise ToolFailure(failure("validation", "--url is no s3://BUCKET", source="aws"))
    return parts.netloc
