"""What opens a bucket of S3."""

from typing import NamedTuple


class BucketKeys(NamedTuple):
    """An access key, and the token that belongs to keys of a session."""

    access_key: str | None
    secret_key: str | None
    session_token: str | None = None
