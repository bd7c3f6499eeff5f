"""Webhooks: playbooks started by HTTP calls from outside, and signatures of the calls."""

import hmac
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts.identity.actors import Actor
from noetl_contracts.ids import OrganizationId, TenantId

SIGNATURE_HEADER = "x-noetl-signature"
TIMESTAMP_HEADER = "x-noetl-timestamp"
WINDOW_S = 300
# What `requested_by` begins with, before the webhook's name.
ASKER = "webhook "
# The field of a credential that holds the key.
SECRET_FIELD = "secret"  # noqa: S105 - the name of a field
BODY_BYTES_MAX = 1024 * 1024
BODY_BYTES_DEFAULT = 256 * 1024
_SCHEME = "sha256="
_TIMESTAMP_DIGITS_MAX = 12


class Webhook(Struct, frozen=True, kw_only=True):
    """A playbook and who may start it; without a credential anybody may.

    `inputs` makes the workload, by templates over `body`, `headers` and `query`; empty, the body
    itself is the workload. `actor` is who put it.
    """

    tenant_id: TenantId
    organization_id: OrganizationId
    name: str
    path: str
    version: int | None = None
    credential: str | None = None
    inputs: dict[str, Any] = msgspec.field(default_factory=dict)
    body_bytes_max: int = BODY_BYTES_DEFAULT
    is_enabled: bool = True
    actor: Actor | None = None


def sign_call(secret: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a call, as its header has it."""
    text = timestamp.encode() + b"." + body
    return _SCHEME + hmac.digest(secret.encode(), text, "sha256").hex()


def find_call_fault(
    *, secret: str, timestamp: str | None, signature: str | None, body: bytes, now_s: float
) -> str | None:
    """Say why a call is not to be trusted, or None; takes the same time for any wrong signature."""
    if timestamp is None or signature is None:
        return f"the headers {TIMESTAMP_HEADER} and {SIGNATURE_HEADER} are missing"
    is_number = timestamp.isascii() and timestamp.isdigit()
    if not is_number or len(timestamp) > _TIMESTAMP_DIGITS_MAX:
        return f"{TIMESTAMP_HEADER} is not a number of seconds since 1970"
    expected = sign_call(secret, timestamp, body)
    if not hmac.compare_digest(expected.encode(), signature.encode()):
        return "the signature does not fit the body, the time and the secret"
    if abs(now_s - int(timestamp)) > WINDOW_S:
        return f"the call is more than {WINDOW_S} s old, or from the future"
    return None
