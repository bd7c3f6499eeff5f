"""Secrets of AWS: read from Secrets Manager, the Parameter Store, or compatible servers."""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from noetl_contracts import codec
from noetl_storage.process.lazy_import import LazyModule
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.result import ABSENT, find_at_path
from noetl_worker.keychain.credential_vault import Credential

if TYPE_CHECKING:
    import boto3
    import botocore.config as botocore_config
    import botocore.exceptions as botocore_errors
else:
    boto3 = LazyModule("boto3")
    botocore_config = LazyModule("botocore.config")
    botocore_errors = LazyModule("botocore.exceptions")

SOURCE = "aws"
CREDENTIAL_TYPE = "aws"
_PASSING = frozenset(
    {
        *("ThrottlingException", "Throttling", "TooManyRequestsException", "InternalServiceError"),
        *("InternalServerError", "ServiceUnavailable", "RequestTimeout"),
    }
)
Read = Callable[[Any, str], str]


def open_aws_client(
    service: str, credential: Credential, *, region: str | None = None, endpoint: str | None = None
) -> Any:
    """Make a client whose waits and retries are bounded; its account is the credential's alone.

    `region` and `endpoint` stand in for what the credential does not say. Raises `ToolFailure`.
    """
    access_key, secret_key = (
        credential.find_text_field("access_key"),
        credential.find_text_field("secret_key"),
    )
    region = credential.find_text_field("region") or region
    if not access_key or not secret_key or not region:
        raise credential.build_unusable_failure("needs access_key, secret_key and region")
    try:
        return boto3.session.Session().client(
            service,
            region_name=region,
            endpoint_url=credential.find_text_field("endpoint") or endpoint,
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            aws_session_token=credential.find_text_field("session_token"),
            config=botocore_config.Config(
                connect_timeout=5,
                read_timeout=10,
                retries={"mode": "standard", "total_max_attempts": 3},
                s3={"addressing_style": "path"},
            ),
        )
    except (botocore_errors.BotoCoreError, ValueError) as problem:
        raise credential.build_unusable_failure(f"cannot be used: {problem}") from problem


async def read_secrets(
    provider: str, place_by_field: Mapping[str, Any], credential: Credential, *, entry: str
) -> dict[str, Any]:
    """Read the secrets that a map names, each once; raises `ToolFailure`.

    `place_by_field` says where each field is: `name`, or `name#key` for a key of a secret that is a
    JSON object.
    """
    return await asyncio.to_thread(_read_all_secrets, provider, place_by_field, credential, entry)


def _read_all_secrets(
    provider: str, place_by_field: Mapping[str, Any], credential: Credential, entry: str
) -> dict[str, Any]:
    service, read_secret = _SERVICES[provider]
    client = open_aws_client(service, credential)
    text_by_name: dict[str, str] = {}
    secrets: dict[str, Any] = {}
    for field, place in place_by_field.items():
        name, _, key = str(place).partition("#")
        if name not in text_by_name:
            text_by_name[name] = _read_one_secret(read_secret, client, name, entry)
        secrets[field] = _pick_part(text_by_name[name], name=name, key=key, entry=entry)
    return secrets


def _read_secret(client: Any, name: str) -> str:
    secret_value = client.get_secret_value(SecretId=name)
    text = secret_value.get("SecretString")
    return text if isinstance(text, str) else bytes(secret_value["SecretBinary"]).decode()


def _read_parameter(client: Any, name: str) -> str:
    parameter: str = client.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"]
    return parameter


def _read_one_secret(read_secret: Read, client: Any, name: str, entry: str) -> str:
    """Read one secret; raises `ToolFailure`."""
    try:
        return read_secret(client, name)
    except botocore_errors.ClientError as problem:
        code = str(problem.response.get("Error", {}).get("Code"))
        kind = "connection" if code in _PASSING else "config"
        raise _build_secret_failure(
            entry, f"AWS answers {code} for {name!r:.200}", kind=kind
        ) from problem
    except UnicodeDecodeError as problem:
        raise _build_secret_failure(entry, f"secret {name!r:.200} is no text") from problem
    except botocore_errors.BotoCoreError as problem:
        # What it is about is the address; it repeats no secret.
        text = f"AWS cannot be asked for {name!r:.200}: {problem}"
        raise _build_secret_failure(entry, text, kind="connection") from problem


def _pick_part(text: str, *, name: str, key: str, entry: str) -> Any:
    """Return the whole of a secret, or one key of it."""
    if not key:
        return text
    try:
        body = codec.decode_json(text.encode())
    except ValueError as problem:
        text = f"secret {name!r:.200} is no JSON, so it has no key '{key}'"
        raise _build_secret_failure(entry, f"{text}: name it without '#{key}'") from problem
    path = find_at_path(body, key)
    if path is ABSENT:
        raise _build_secret_failure(entry, f"secret {name!r:.200} has no key '{key}'")
    return path


def _build_secret_failure(entry: str, reason: str, *, kind: str = "config") -> ToolFailure:
    text = f"keychain entry '{entry}' of kind secret_manager cannot be resolved: {reason}"
    return ToolFailure(build_error(kind, text, source=SOURCE))


_SERVICES: dict[str, tuple[str, Read]] = {
    "aws": ("secretsmanager", _read_secret),
    "aws_ssm": ("ssm", _read_parameter),
}
PROVIDERS = frozenset(_SERVICES)
