"""Triggers: playbooks started by messages of a subject, and how subjects match."""

import re
from typing import Any

import msgspec
from msgspec import Struct

from noetl_contracts import subjects
from noetl_contracts.identity.actors import Actor
from noetl_contracts.ids import OrganizationId, TenantId

BODY_BYTES_MAX = 512 * 1024
BODY_BYTES_DEFAULT = 256 * 1024
SUBJECT_TOKENS_MAX = 16
ANY_TOKEN, ANY_TOKENS = "*", ">"
# What templates and the filter of a trigger see of a message.
MESSAGE_NAMES = frozenset({"body", "subject", "message_id"})
FILTER_CHARACTERS_MAX = 4096
IN_FLIGHT_MAX = 10_000
# What `requested_by` begins with, before the trigger's name.
ASKER = "trigger "
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")


class Trigger(Struct, frozen=True, kw_only=True):
    """A playbook and the subjects whose messages start it.

    `subject` is what follows `noetl.triggers.<tenant>.<org>.`; `*` stands for one token, a last `>`
    for one or more. `inputs` makes the workload, by templates over `body`, `subject` and
    `message_id`; empty, the body itself is the workload. `filter` is a condition over the same
    names: a message for which it is false starts nothing. No more than `max_in_flight` executions
    that it started run at once; None is any number. `actor` is who put it.
    """

    tenant_id: TenantId
    organization_id: OrganizationId
    name: str
    subject: str
    path: str
    version: int | None = None
    inputs: dict[str, Any] = msgspec.field(default_factory=dict)
    body_bytes_max: int = BODY_BYTES_DEFAULT
    is_enabled: bool = True
    filter: str | None = None
    max_in_flight: int | None = None
    actor: Actor | None = None


class MessageSource(Struct, frozen=True, kw_only=True):
    """Whose message it is, and under which subject of theirs."""

    tenant_id: TenantId
    organization_id: OrganizationId
    subject: str


def find_subject_fault(subject: str) -> str | None:
    """Say why a text cannot be a trigger's subject, or None."""
    tokens = subject.split(".")
    if len(tokens) > SUBJECT_TOKENS_MAX:
        return f"a subject has at most {SUBJECT_TOKENS_MAX} tokens"
    for place, token in enumerate(tokens):
        is_last = place == len(tokens) - 1
        if token == ANY_TOKEN or (token == ANY_TOKENS and is_last) or _TOKEN.fullmatch(token):
            continue
        return (
            f"{token[:64]!r} is no token: use letters, digits, '_' or '-', "
            "'*' for any token, and '>' as the last one for any rest"
        )
    return None


def matches_subject(pattern: str, subject: str) -> bool:
    """Tell whether a subject without wildcards is one of a pattern's."""
    return do_patterns_overlap(pattern, subject)


def do_patterns_overlap(first: str, second: str) -> bool:
    """Tell whether one subject could be both patterns'."""
    first_tokens, second_tokens = first.split("."), second.split(".")
    for first_token, second_token in zip(first_tokens, second_tokens, strict=False):
        if ANY_TOKENS in (first_token, second_token):
            return True
        if ANY_TOKEN not in (first_token, second_token) and first_token != second_token:
            return False
    return len(first_tokens) == len(second_tokens)


def parse_trigger_subject(subject: str) -> MessageSource | None:
    """Read a message's full subject; None when it is none of the grammar."""
    parts = subject.split(".")
    depth = subjects.TRIGGERS.count(".") + 1
    if ".".join(parts[:depth]) != subjects.TRIGGERS or len(parts) < depth + 3:
        return None
    tenant, organization, *subject_parts = parts[depth:]
    return MessageSource(
        tenant_id=TenantId(tenant),
        organization_id=OrganizationId(organization),
        subject=".".join(subject_parts),
    )
