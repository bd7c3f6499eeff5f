"""References to immutable bytes, and the envelope in which results travel."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

JSON_MEDIA_TYPE = "application/json"
ARROW_MEDIA_TYPE = "application/vnd.apache.arrow.stream"
PARQUET_MEDIA_TYPE = "application/vnd.apache.parquet"
# The first bytes of a table, and of what is compressed; JSON begins with none of them.
PARQUET_HEAD, ARROW_HEAD, GZIP_HEAD, ZSTD_HEAD = (
    b"PAR1",
    b"\xff\xff\xff\xff",
    b"\x1f\x8b",
    b"\x28\xb5\x2f\xfd",
)

# What a playbook sees as inline: a larger result is replaced by a handle.
INLINE_BYTES_MAX = 64 * 1024
# What travels inside of events and commands: a larger result lies in the store, also one that the
# playbook sees as inline.
RESULT_INLINE_BYTES_MAX = 1024
# What one task may collect over its attempts, as JSON.
COLLECTED_BYTES_MAX = 256 * 1024 * 1024
EVENT_INLINE_BYTES_MAX = 16 * 1024


class PayloadRef(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Immutable content by digest; `payload_bytes` is the length before compression."""

    # Refused at every boundary where it does not name stored content.
    uri: Annotated[str, Meta(pattern="^noetl://")]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    media_type: str
    payload_bytes: int
    row_count: int | None = None
    schema_digest: str | None = None
    codec: str | None = None
    key_id: str | None = None


class ResultEnvelope(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A result as events carry it: a reference, or a small value in `context["data"]`.

    `context` holds scalars and small objects only, never secrets: `data` when the result is
    inline, else `fields` (selected and top-level scalar fields) beside the reference.
    """

    status: str
    reference: PayloadRef | None = None
    parent_ref: str | None = None
    context: dict[str, Any] = msgspec.field(default_factory=dict)


def is_packed(head: bytes) -> bool:
    """Tell from its first bytes whether a payload is compressed or a table."""
    return head.startswith((PARQUET_HEAD, ARROW_HEAD, GZIP_HEAD, ZSTD_HEAD))
