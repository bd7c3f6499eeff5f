"""Secrets of AWS: Secrets Manager, and parameters of Systems Manager."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from noetl_contracts import codec
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.result import ABSENT, at_path
from noetl_worker.keys import aws_client
from noetl_worker.keys.credential_vault import Credential

SOURCE = "aws"
CREDENTIAL_TYPE = "aws"
_PASSING = frozenset(
    {
        *("ThrottlingException", "Throttling", "TooManyRequestsException", "InternalServiceError"),
        *("InternalServerError", "ServiceUnavailable", "RequestTimeout"),
    }
)

Read = Callable[[Any, str], str]


async def read_secrets(
    provider: str, wanted: Mapping[str, Any], credential: Credential, *, entry: str
) -> dict[str, Any]:
    """Read the secrets that a map names, each once; raises `ToolFailure`.

    `wanted` has a field's name, and where it is: `name`, or `name#key` for a key of a secret that
    is a JSON object.
    """
    return await asyncio.to_thread(_read_all, provider, wanted, credential, entry)


def _read_all(
    provider: str, wanted: Mapping[str, Any], credential: Credential, entry: str
) -> dict[str, Any]:
    service, read = _SERVICES[provider]
    client = aws_client.open_client(service, credential)
    text_by_name: dict[str, str] = {}
    found: dict[str, Any] = {}
    for field, place in wanted.items():
        name, _, key = str(place).partition("#")
        if name not in text_by_name:
            text_by_name[name] = _asked(read, client, name, entry)
        found[field] = _part(text_by_name[name], name=name, key=key, entry=entry)
    return found


def _read_secret(client: Any, name: str) -> str:
    found = client.get_secret_value(SecretId=name)
    text = found.get("SecretString")
    return text if isinstance(text, str) else bytes(found["SecretBinary"]).decode()


def _read_parameter(client: Any, name: str) -> str:
    found: str = client.get_parameter(Name=name, WithDecryption=True)["Parameter"]["Value"]
    return found


def _asked(read: Read, client: Any, name: str, entry: str) -> str:
    """Read one secret; raises `ToolFailure`."""
    try:
        return read(client, name)
    except ClientError as problem:
        code = str(problem.response.get("Error", {}).get("Code"))
        kind = "connection" if code in _PASSING else "config"
        raise _refused(entry, f"AWS answers {code} for {name!r:.200}", kind=kind) from problem
    except UnicodeDecodeError as problem:
        raise _refused(entry, f"secret {name!r:.200} is no text") from problem
    except BotoCoreError as problem:
        # What it is about is the address; it repeats no secret.
        text = f"AWS cannot be asked for {name!r:.200}: {problem}"
        raise _refused(entry, text, kind="connection") from problem


def _part(text: str, *, name: str, key: str, entry: str) -> Any:
    """Return the whole of a secret, or one key of it."""
    if not key:
        return text
    try:
        body = codec.decode(text.encode())
    except ValueError as problem:
        text = f"secret {name!r:.200} is no JSON, so it has no key '{key}'"
        raise _refused(entry, f"{text}: name it without '#{key}'") from problem
    found = at_path(body, key)
    if found is ABSENT:
        raise _refused(entry, f"secret {name!r:.200} has no key '{key}'")
    return found


def _refused(entry: str, reason: str, *, kind: str = "config") -> ToolFailure:
    text = f"keychain entry '{entry}' of kind secret_manager cannot be resolved: {reason}"
    return ToolFailure(failure(kind, text, source=SOURCE))


_SERVICES: dict[str, tuple[str, Read]] = {
    "aws": ("secretsmanager", _read_secret),
    "aws_ssm": ("ssm", _read_parameter),
}
PROVIDERS = frozenset(_SERVICES)
