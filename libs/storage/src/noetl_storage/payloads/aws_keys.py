"""Master keys in AWS KMS: they never leave it, and each use of one can be audited there."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from noetl_contracts.errors import PayloadKeyUnknown, PayloadSealBroken
from noetl_storage.ports.errors import StorageMisconfigured, StorageUnavailable

_UNKNOWN = frozenset({"NotFoundException", "DisabledException", "KMSInvalidStateException"})
_REFUSED = frozenset({"AccessDeniedException", "UnrecognizedClientException"})
_BROKEN = frozenset({"InvalidCiphertextException", "IncorrectKeyException"})


def open_kms_client(*, region: str, endpoint: str | None) -> Any:
    """Make a client whose waits and retries are bounded; credentials come from its environment."""
    return boto3.session.Session().client(
        "kms",
        region_name=region,
        endpoint_url=endpoint,
        config=Config(
            connect_timeout=5,
            read_timeout=10,
            retries={"mode": "standard", "total_max_attempts": 4},
        ),
    )


def open_keys(address: str) -> "AwsKeys":
    """Open `kms+aws://<region>/<key id or alias>`; raises `StorageMisconfigured`."""
    parts = urlsplit(address)
    key, region = unquote(parts.path.removeprefix("/")), parts.netloc
    if not key or not region:
        raise StorageMisconfigured("keys in AWS KMS need kms+aws://<region>/<key id or alias/name>")
    endpoint = parse_qs(parts.query).get("endpoint", [None])[0]
    return AwsKeys(open_kms_client(region=region, endpoint=endpoint), key=key)


class AwsKeys:
    """One key of KMS for wrapping; a key is unwrapped with the KMS key that is named beside it."""

    def __init__(self, client: Any, *, key: str) -> None:
        self._client = client
        self._key = key

    def get_key_id(self) -> str:
        """Name the key as it was configured."""
        return self._key

    def wrap_key(self, key: bytes, context: Mapping[str, str]) -> bytes:
        """Wrap a key with it; raises `StorageUnavailable`, `StorageMisconfigured`."""
        response = self._call_kms(
            "encrypt", KeyId=self._key, Plaintext=key, EncryptionContext=dict(context)
        )
        wrapped_key: bytes = response["CiphertextBlob"]
        return wrapped_key

    def unwrap_key(self, key_id: str, wrapped: bytes, context: Mapping[str, str]) -> bytes:
        """Return a key; raises `PayloadKeyUnknown`, `PayloadSealBroken`, and as `wrap_key` does."""
        response = self._call_kms(
            "decrypt", KeyId=key_id, CiphertextBlob=wrapped, EncryptionContext=dict(context)
        )
        key: bytes = response["Plaintext"]
        return key

    def _call_kms(self, name: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, name)(**arguments)
        except ClientError as failure:
            code = str(failure.response.get("Error", {}).get("Code"))
            key = arguments["KeyId"]
            if code in _BROKEN:
                raise PayloadSealBroken(
                    f"a tenant's key does not open with {key!r} of AWS KMS"
                ) from failure
            if code in _UNKNOWN:
                raise PayloadKeyUnknown(
                    f"AWS KMS cannot use the key {key!r} ({code}): enable it again, and keep every "
                    "key until `noetl payloads rotate` has run"
                ) from failure
            if code in _REFUSED:
                raise StorageMisconfigured(
                    f"AWS KMS refuses the key {key!r} ({code}): allow this role kms:Encrypt and "
                    "kms:Decrypt with it"
                ) from failure
            raise StorageUnavailable(f"AWS KMS does not answer: {code}") from failure
        except BotoCoreError as failure:
            raise StorageUnavailable(
                f"AWS KMS does not answer: {type(failure).__name__}"
            ) from failure
