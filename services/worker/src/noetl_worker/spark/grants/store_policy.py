"""Which objects the keys of a job open, as a policy of S3."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from noetl_contracts import codec

# What AWS takes of an inline policy.
_POLICY_CHARACTERS_MAX = 2048
_READ = ["s3:GetObject"]
_WRITE = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]


class PrefixAccess(Struct, frozen=True, kw_only=True, order=True):
    """A folder, or one object, of a bucket; the key has no slash at its end."""

    bucket: str
    key: str
    is_written: bool = False


def build_policy(accesses: Iterable[PrefixAccess]) -> str:
    """Write the policy of some folders; of more than it has room for, that of their buckets."""
    needed = sorted(set(accesses))
    policy = _write_policy(needed)
    if len(policy) > _POLICY_CHARACTERS_MAX:
        buckets = sorted({(access.bucket, access.is_written) for access in needed})
        policy = _write_policy(
            [
                PrefixAccess(bucket=bucket, key="", is_written=is_written)
                for bucket, is_written in buckets
            ]
        )
    return policy


def _write_policy(accesses: list[PrefixAccess]) -> str:
    statements: list[dict[str, Any]] = []
    for actions, is_written in ((_READ, False), (_WRITE, True)):
        objects = [
            resource
            for access in accesses
            if access.is_written is is_written
            for resource in _list_objects(access)
        ]
        if objects:
            statements.append({"Effect": "Allow", "Action": actions, "Resource": objects})
    for bucket in sorted({access.bucket for access in accesses}):
        keys = [access.key for access in accesses if access.bucket == bucket]
        statement: dict[str, Any] = {
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": [f"arn:aws:s3:::{bucket}"],
        }
        if all(keys):
            prefixes = [prefix for key in keys for prefix in (key, f"{key}/*")]
            statement["Condition"] = {"StringLike": {"s3:prefix": prefixes}}
        statements.append(statement)
    return codec.encode_text({"Version": "2012-10-17", "Statement": statements})


def _list_objects(access: PrefixAccess) -> list[str]:
    place = f"arn:aws:s3:::{access.bucket}/"
    return [f"{place}{access.key}", f"{place}{access.key}/*"] if access.key else [f"{place}*"]
