"""Asks AWS, and object stores that speak S3, about a credential's keys."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from noetl_storage.process.lazy_import import LazyModule
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.keychain import aws_secrets
from noetl_worker.keychain.credential_vault import Credential

if TYPE_CHECKING:
    import botocore.exceptions as botocore_errors
else:
    botocore_errors = LazyModule("botocore.exceptions")

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


async def probe_buckets(credential: Credential, url: str | None) -> dict[str, Any]:
    """List the buckets of the keys, or look into the bucket of `url`; raises `ToolFailure`."""
    bucket = None if url is None else _parse_bucket(url)

    def ask_storage() -> dict[str, Any]:
        client = aws_secrets.open_aws_client(
            "s3",
            credential,
            region=_REGION_DEFAULT,
            endpoint=_ENDPOINTS.get(credential.kind),
        )
        server = urlsplit(client.meta.endpoint_url).netloc
        if bucket is not None:
            page = client.list_objects_v2(Bucket=bucket, MaxKeys=1)
            return {"server": server, "bucket": bucket, "is_empty": not page.get("KeyCount")}
        buckets = client.list_buckets()
        return {"server": server, "buckets": len(buckets.get("Buckets", ()))}

    return await asyncio.to_thread(_call_aws, ask_storage, credential, bucket)


async def probe_identity(credential: Credential) -> dict[str, Any]:
    """Ask STS whose the keys are; raises `ToolFailure`."""

    def ask_sts() -> dict[str, Any]:
        client = aws_secrets.open_aws_client("sts", credential)
        caller_identity = client.get_caller_identity()
        server = urlsplit(client.meta.endpoint_url).netloc
        return {
            "server": server,
            "account": caller_identity["Account"],
            "user": caller_identity["Arn"],
        }

    return await asyncio.to_thread(_call_aws, ask_sts, credential, None)


def _call_aws(
    ask: Callable[[], dict[str, Any]], credential: Credential, bucket: str | None
) -> dict[str, Any]:
    """Ask, and say what the server or the way to it refuses; raises `ToolFailure`."""
    try:
        return ask()
    except botocore_errors.ClientError as problem:
        code = str(problem.response.get("Error", {}).get("Code"))
        raise ToolFailure(_classify_code(code, bucket)) from problem
    except (botocore_errors.ParamValidationError, ValueError) as problem:
        raise credential.build_unusable_failure(f"cannot be used: {problem}") from problem
    except botocore_errors.BotoCoreError as problem:
        # What it is about is the address; it repeats no secret.
        text = f"the server cannot be asked: {problem}: check endpoint and region"
        raise ToolFailure(build_error("connection", text, source="aws")) from problem


def _classify_code(code: str, bucket: str | None) -> Any:
    if code in _REFUSED:
        text = f"the server answers {code}: check access_key and secret_key"
        return build_error("auth", text, source="aws")
    if code in _DENIED and bucket is None:
        text = (
            f"the server answers {code}: these keys may not list the buckets; "
            "test them with one that they may read, --url s3://BUCKET"
        )
        return build_error("auth", text, source="aws")
    if code in _DENIED:
        text = f"the server answers {code}: these keys may not list bucket {bucket!r:.80}"
        return build_error("auth", text, source="aws")
    if code in _MISSING:
        return build_error("not_found", f"there is no bucket {bucket!r:.80}", source="aws")
    return build_error("connection", f"the server answers {code}", source="aws")


def _parse_bucket(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in _SCHEMES or not parts.netloc:
        raise ToolFailure(build_error("validation", "--url is no s3://BUCKET", source="aws"))
    return parts.netloc
