"""Records of what people did with dead letters, and the owner of a dead letter."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts import codec, subjects
from noetl_contracts.errors import SubjectError
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.requests import triggers

Owner = tuple[TenantId, OrganizationId]


class DeadLetterAction(StrEnum):
    """What becomes of a dead letter."""

    REQUEUE = "requeue"
    DROP = "drop"


class DeadLetterAct(Struct, frozen=True, kw_only=True):
    """That somebody sent a letter again, or dropped it; `why` is asked of who drops one.

    `reason` is why the message had been given up, `sha256` the digest of its bytes.
    """

    action: DeadLetterAction
    sequence: int
    tenant_id: TenantId
    organization_id: OrganizationId
    stream: str
    consumer: str
    subject: str
    reason: str
    delivered: int
    requeued: int
    sha256: str
    who: str
    why: str | None = None
    act_id: int = 0
    acted_at: datetime | None = None


def find_owner(subject: str) -> Owner | None:
    """Return whose message was published under a subject; None where it says nobody's."""
    source = triggers.parse_trigger_subject(subject)
    if source is not None:
        return source.tenant_id, source.organization_id
    for parse in (subjects.parse_shard_subject, subjects.parse_command_subject):
        try:
            owner = parse(subject)
        except SubjectError:
            continue
        return owner.tenant_id, owner.organization_id
    return None


def decode_for_display(data: bytes) -> Any:
    """Decode a message that is JSON, else show its bytes as well as text can."""
    try:
        return codec.decode_json(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return data.decode("utf-8", errors="backslashreplace")
