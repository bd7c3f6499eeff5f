"""Short-lived keys of S3 that open less than the keys which ask for them."""

from collections.abc import Mapping
from typing import Any

import boto3
import botocore.exceptions
from botocore.config import Config
from msgspec import Struct

from noetl_contracts.errors import Permanent, Retryable

_REGION = "us-east-1"
_NAME = "noetl-spark"
# The client asks for one; servers of one's own take keys to be their own role.
_ROLE = "arn:aws:iam::000000000000:role/noetl-spark"
_BUSY = 500


class NoTemporaryKeys(Permanent):
    """A store gives these keys no narrower ones."""


class KeysUnavailable(Retryable):
    """A store did not answer who asked for keys."""


class TemporaryKeys(Struct, frozen=True, kw_only=True):
    """Keys of one session, and its end as a Unix time in seconds."""

    access_key: str
    secret_key: str
    session_token: str
    ends_at: float

    def __repr__(self) -> str:
        """Show no key."""
        return "TemporaryKeys(...)"


def request_keys(account: Mapping[str, Any], policy: str, *, lifetime_s: int) -> TemporaryKeys:
    """Ask the server of an account for keys that a policy narrows; it blocks.

    Servers with an `endpoint` are asked to assume the account's own role (SeaweedFS, MinIO), AWS
    for a federation token. Raises `NoTemporaryKeys` and `KeysUnavailable`.
    """
    endpoint = str(account.get("endpoint") or "")
    if account.get("session_token"):
        raise NoTemporaryKeys("keys of a session give no others")
    client = boto3.session.Session(
        aws_access_key_id=str(account.get("access_key") or ""),
        aws_secret_access_key=str(account.get("secret_key") or ""),
        region_name=str(account.get("region") or _REGION),
    ).client(
        "sts",
        endpoint_url=endpoint or None,
        config=Config(connect_timeout=5, read_timeout=15, retries={"total_max_attempts": 3}),
    )
    try:
        if endpoint:
            client.meta.events.register("before-call.sts.AssumeRole", _drop_role)
            answer = client.assume_role(
                RoleArn=_ROLE, RoleSessionName=_NAME, Policy=policy, DurationSeconds=lifetime_s
            )
        else:
            answer = client.get_federation_token(
                Name=_NAME, Policy=policy, DurationSeconds=lifetime_s
            )
    except botocore.exceptions.ClientError as problem:
        status = problem.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = problem.response.get("Error", {}).get("Code", "")
        text = f"the server answers {code or status} to who asks for temporary keys"
        if status >= _BUSY and code not in {"NotImplemented", "501"}:
            raise KeysUnavailable(text) from problem
        raise NoTemporaryKeys(text) from problem
    except botocore.exceptions.BotoCoreError as problem:
        raise KeysUnavailable(f"no temporary keys: {type(problem).__name__}") from problem
    given_keys = answer["Credentials"]
    return TemporaryKeys(
        access_key=given_keys["AccessKeyId"],
        secret_key=given_keys["SecretAccessKey"],
        session_token=given_keys["SessionToken"],
        ends_at=given_keys["Expiration"].timestamp(),
    )


def _drop_role(params: Any, **_: Any) -> None:
    params["body"].pop("RoleArn", None)
