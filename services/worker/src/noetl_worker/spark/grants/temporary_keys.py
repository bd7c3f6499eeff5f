"""Short-lived keys of S3 that open less than the keys which ask for them."""

from collections.abc import Mapping
from typing import Any

import boto3
import botocore.exceptions
import botocore.parsers
from botocore.config import Config
from msgspec import Struct

from noetl_contracts.errors import Permanent, Retryable

_REGION = "us-east-1"
_NAME = "noetl-spark"
# The client asks for one; servers of one's own take keys to be their own role.
_ROLE = "arn:aws:iam::000000000000:role/noetl-spark"
_BUSY = 500
_UNKNOWN = "NotImplemented"


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

    def as_fields(self) -> dict[str, str]:
        """Return the keys under the names that accounts have for them."""
        return {
            "access_key": self.access_key,
            "secret_key": self.secret_key,
            "session_token": self.session_token,
        }


def request_keys(account: Mapping[str, Any], policy: str, *, lifetime_s: int) -> TemporaryKeys:
    """Ask the server of an account for keys that a policy narrows; it blocks.

    Raises `NoTemporaryKeys` and `KeysUnavailable`.
    """
    if account.get("session_token"):
        raise NoTemporaryKeys("keys of a session give no others")
    try:
        given_keys = _ask_server(account, policy, lifetime_s)["Credentials"]
    except botocore.exceptions.ClientError as problem:
        status = problem.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = problem.response.get("Error", {}).get("Code", "")
        text = f"the server answers {code or status} to who asks for temporary keys"
        if status >= _BUSY and code != _UNKNOWN:
            raise KeysUnavailable(text) from problem
        raise NoTemporaryKeys(text) from problem
    except (botocore.parsers.ResponseParserError, KeyError) as problem:
        # A store that knows no such request answers it as one for a bucket, or with a page.
        text = "the server answers something else to who asks for temporary keys"
        raise NoTemporaryKeys(text) from problem
    except botocore.exceptions.BotoCoreError as problem:
        raise KeysUnavailable(f"no temporary keys: {type(problem).__name__}") from problem
    return TemporaryKeys(
        access_key=given_keys["AccessKeyId"],
        secret_key=given_keys["SecretAccessKey"],
        session_token=given_keys["SessionToken"],
        ends_at=given_keys["Expiration"].timestamp(),
    )


def _ask_server(account: Mapping[str, Any], policy: str, lifetime_s: int) -> Any:
    """Assume the account's own role at its `endpoint`, or ask AWS for a federation token."""
    endpoint = str(account.get("endpoint") or "")
    # Another server of AWS than that of its buckets gives keys.
    is_cloud = not endpoint or ".amazonaws.com" in endpoint
    client = _open_client(account, "" if is_cloud else endpoint)
    if is_cloud:
        return client.get_federation_token(Name=_NAME, Policy=policy, DurationSeconds=lifetime_s)
    client.meta.events.register("before-call.sts.AssumeRole", _drop_role)
    return client.assume_role(
        RoleArn=_ROLE, RoleSessionName=_NAME, Policy=policy, DurationSeconds=lifetime_s
    )


def _open_client(account: Mapping[str, Any], endpoint: str) -> Any:
    session = boto3.session.Session(
        aws_access_key_id=str(account.get("access_key") or ""),
        aws_secret_access_key=str(account.get("secret_key") or ""),
        region_name=str(account.get("region") or _REGION),
    )
    waits = Config(connect_timeout=5, read_timeout=15, retries={"total_max_attempts": 3})
    return session.client("sts", endpoint_url=endpoint or None, config=waits)


def _drop_role(params: Any, **_: Any) -> None:
    params["body"].pop("RoleArn", None)
