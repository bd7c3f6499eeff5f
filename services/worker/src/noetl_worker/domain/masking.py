"""Known secret values, replaced by `***` wherever they would leave the worker."""

from base64 import b64encode
from typing import Any
from urllib.parse import quote

from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.errors import ErrorObject

MASK = "***"
_LENGTH_MIN_TEXT = 6
_LENGTH_MIN_DATA = 16
_SECRETS_MAX = 4096


class Mask:
    """Remembers the secrets that this process has opened, in every form in which they appear."""

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._bytes: dict[bytes, None] = {}

    def learn(self, value: Any) -> None:
        """Remember every text inside a credential's fields."""
        if isinstance(value, dict):
            for item in value.values():
                self.learn(item)
        elif isinstance(value, list):
            for item in value:
                self.learn(item)
        elif isinstance(value, str) and len(value) >= _LENGTH_MIN_TEXT:
            self._remember(value)

    def _remember(self, secret: str) -> None:
        forms = {
            secret,
            quote(secret, safe=""),
            b64encode(secret.encode()).decode(),
            codec.text(secret)[1:-1],
        }
        for form in forms:
            self._texts[form] = None
            if len(secret) >= _LENGTH_MIN_DATA:
                self._bytes[form.encode()] = None
        while len(self._texts) > _SECRETS_MAX:
            self._texts.pop(next(iter(self._texts)))

    def text(self, text: str) -> str:
        """Mask a message: secrets of 6 characters and more."""
        for secret in self._texts:
            if secret in text:
                text = text.replace(secret, MASK)
        return text

    def data(self, data: bytes) -> bytes:
        """Mask encoded JSON: secrets of 16 characters and more, so short ones damage no data."""
        for secret in self._bytes:
            if secret in data:
                data = data.replace(secret, MASK.encode())
        return data

    def error(self, error: ErrorObject) -> ErrorObject:
        """Mask an error's message and details."""
        if not self._texts:
            return error
        details = error.details
        if details is not None:
            details = codec.decode(self.text(codec.text(details)))
        return structs.replace(error, message=self.text(error.message), details=details)
