"""Sessions of people who signed in with a browser."""

from datetime import datetime

from msgspec import Struct


class Session(Struct, frozen=True, kw_only=True):
    """Who signed in, and until when; `session_hash` is the SHA-256 of the secret in the cookie.

    `issuer` and `subject` name the person, `groups` are those of the identity provider at the
    sign-in.
    """

    session_hash: str
    issuer: str
    subject: str
    name: str
    email: str
    groups: tuple[str, ...]
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None = None
