"""Tokens by which others answer: the same for the same attempt of a task, on every worker."""

import hmac

from msgspec import Struct


class Callbacks(Struct, frozen=True, kw_only=True):
    """Where answers are sent to, and the secret that tokens are made of."""

    base_url: str = "http://127.0.0.1:8080"
    secret: str = ""

    def token(self, *, command_id: str, key: str) -> str:
        """Return the token of one attempt of a task; nobody can guess it without the secret."""
        seed = f"callback/{command_id}/{key}".encode()
        return hmac.new(self.secret.encode(), seed, "sha256").hexdigest()

    def url(self, token: str) -> str:
        """Return the address that takes the answer."""
        return f"{self.base_url.rstrip('/')}/api/callbacks/{token}"
