"""Notifications: playbooks that start because executions of others ended, are late or wait."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from msgspec import Struct

from noetl_contracts.errors import summarize_error
from noetl_contracts.identity import actors
from noetl_contracts.identity.actors import Actor, ActorKind, Via
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.ledger.records import OpenWait, Request
from noetl_contracts.requests import inbox, quiet_hours, workload_keys
from noetl_contracts.requests.facts import ExecutionRequested
from noetl_contracts.requests.quiet_hours import QuietHours
from noetl_contracts.requests.starts import build_start_request

# What `requested_by` begins with, before the rule's name.
ASKER = "notification "
EVERYTHING = "*"
# The records of the administration log that begin and end what is known of a rule's tests.
TESTED, REMOVED = "notification.tested", "notification.removed"
# The cause of a message that tells what came in quiet hours.
HELD = "held"
_BELOW = "/*"
_RULE_ACTOR = "notification/"
# A message may tell of many: each of its texts is bounded.
_TEXT_CHARACTERS_MAX = 500
_NAME_CHARACTERS_MAX = 100
_NAMES_MAX = 20


class Cause(StrEnum):
    """Why somebody is notified.

    `recovered`: the execution completed, and of those of its path that had begun and ended before,
    the last one failed. `late`: it still runs after the seconds that its rule names; where a rule
    has none, it or a step has passed the `deadline` of its playbook. `waiting`: it waits for an
    approval, for at least the seconds of the rule.
    """

    FAILED = "failed"
    RECOVERED = "recovered"
    LATE = "late"
    WAITING = "waiting"


class NotificationRule(Struct, frozen=True, kw_only=True):
    """Which ends of executions, late ones or open approvals start a playbook.

    `longer_than_s` is the deadline of late ones; it passes over ends and approvals that took less.
    `pattern` is a path, a folder and `/*`, or `*`. `actor` is who put the rule. What comes in
    `quiet` hours is held until they are over, and then sent as one; `urgent` causes are not.
    """

    tenant_id: TenantId
    organization_id: OrganizationId
    name: str
    pattern: str
    causes: tuple[Cause, ...]
    longer_than_s: float = 0.0
    playbook: str
    actor: Actor | None = None
    quiet: QuietHours | None = None
    urgent: tuple[Cause, ...] = ()


class DueNotification(Struct, frozen=True, kw_only=True):
    """What a rule waits for and nobody was notified of.

    `subject` tells several of one execution and cause apart: of an approval it is the id, of a late
    step its activation.
    """

    rule: NotificationRule
    rule_id: int
    cause: Cause
    execution_id: ExecutionId
    path: str
    status: str
    started_at: datetime | None
    seen_at: datetime
    ended_at: datetime | None = None
    error: Any = None
    subject: str = ""
    wait: OpenWait | None = None
    late_since: datetime | None = None
    late_step: str | None = None


class HeldNotification(Struct, frozen=True, kw_only=True):
    """A notification that came in quiet hours: what was told of it then, and how it stands now.

    `has_recovered`: a later execution of the path completed, and none failed after that.
    """

    rule: NotificationRule
    rule_id: int
    cause: Cause
    execution_id: ExecutionId
    subject: str
    item: dict[str, Any]
    current_status: str | None = None
    has_recovered: bool = False


class SentNotification(Struct, frozen=True, kw_only=True):
    """A notification in the history; `status` is that of the execution that delivers it.

    Of one that is `HELD` in quiet hours, or `DROPPED` with its rule, there is none.
    """

    rule: str
    cause: Cause
    path: str
    execution_id: ExecutionId
    delivered_by: ExecutionId | None
    status: str
    sent_at: datetime


class RuleTest(Struct, frozen=True, kw_only=True):
    """A test of a rule: who sent it, and the status of the execution that it started.

    `status` is None where no table shows that execution, yet or any more.
    """

    execution_id: ExecutionId
    status: str | None
    actor: Actor
    sent_at: datetime


def is_path_matched(pattern: str, path: str) -> bool:
    """Tell whether a rule's pattern covers a playbook's path."""
    if pattern in (EVERYTHING, path):
        return True
    return pattern.endswith(_BELOW) and path.startswith(pattern[:-1])


def is_pattern(text: str) -> bool:
    """Tell whether a text is a pattern: a path, a folder and `/*`, or `*`."""
    path = text.removesuffix(_BELOW)
    return text == EVERYTHING or (bool(path) and EVERYTHING not in path)


def get_approval_id(wait: OpenWait) -> str:
    """Return the id under which an approval is decided."""
    return wait.wait.address.partition("/")[2]


def build_workload(due: DueNotification, *, console_url: str = "") -> dict[str, Any]:
    """Return the inputs of the playbook that delivers a notification.

    The reaper starts it when a rule is due, the planner to test a rule.
    """
    until = due.ended_at or due.seen_at
    lasted = until - (due.started_at or until)
    return {
        workload_keys.NOTIFICATION: {
            "rule": due.rule.name,
            "cause": str(due.cause),
            "execution_id": due.execution_id,
            "path": due.path,
            "status": due.status,
            "ended_at": _write_time(due.ended_at),
            "duration_s": round(lasted.total_seconds(), 3),
            "error": _describe_error(due.error),
            "key": "/".join([due.rule.name, *_list_key_parts(due)]),
            "late": None
            if due.late_since is None
            else {"since": _write_time(due.late_since), "step": due.late_step},
            "approval": _describe_approval(due, console_url),
            "held": [],
        }
    }


def is_held(rule: NotificationRule, cause: Cause, instant: datetime) -> bool:
    """Tell whether a rule holds back what comes now; raises `TimezoneRefused`."""
    if rule.quiet is None or cause in rule.urgent:
        return False
    return quiet_hours.is_quiet(rule.quiet, instant)


def build_held_item(due: DueNotification, *, console_url: str = "") -> dict[str, Any]:
    """Return what a message after the quiet hours tells of a notification."""
    note = build_workload(due, console_url=console_url)[workload_keys.NOTIFICATION]
    return {name: value for name, value in note.items() if name not in {"rule", "held"}}


def build_held_workload(held: Sequence[HeldNotification]) -> dict[str, Any]:
    """Return the inputs of the playbook that delivers what a rule has held.

    The fields of a single notification are there, so that playbooks need not tell them apart.
    """
    first = held[0]
    return {
        workload_keys.NOTIFICATION: {
            "rule": first.rule.name,
            "cause": HELD,
            "execution_id": first.execution_id,
            "path": first.rule.pattern,
            "status": None,
            "ended_at": None,
            "duration_s": 0.0,
            "error": None,
            "key": f"{first.rule.name}/{HELD}/{first.item['key'].partition('/')[2]}",
            "late": None,
            "approval": None,
            "held": [
                {
                    **notification.item,
                    "status_now": notification.current_status,
                    "recovered": notification.has_recovered,
                }
                for notification in held
            ],
        }
    }


def _write_time(instant: datetime | None) -> str | None:
    return None if instant is None else instant.astimezone(UTC).isoformat()


def _list_key_parts(due: DueNotification) -> list[str]:
    """Return what tells a notification of a rule from its others."""
    return [part for part in (due.execution_id, str(due.cause), due.subject) if part]


def _describe_approval(due: DueNotification, console_url: str) -> dict[str, Any] | None:
    """Say what is asked, who may decide, until when, and where."""
    if due.wait is None:
        return None
    wait = due.wait.wait
    return {
        "id": get_approval_id(due.wait),
        "step": due.wait.step,
        "title": _cut_text(wait.title),
        "description": _cut_text(wait.description),
        "assignees": [name[:_NAME_CHARACTERS_MAX] for name in wait.assignees[:_NAMES_MAX]],
        "options": [name[:_NAME_CHARACTERS_MAX] for name in wait.options[:_NAMES_MAX]],
        "four_eyes": wait.four_eyes,
        "since": _write_time(due.wait.since),
        "until": _write_time(inbox.find_wait_end(due.wait)),
        "url": f"{console_url.rstrip('/')}/approvals" if console_url else None,
        "command": inbox.build_send_command(wait),
    }


def build_actor(rule: NotificationRule) -> Actor:
    """Return a rule as the actor of what it starts, for who put it."""
    return actors.build_caused_actor(
        ActorKind.TRIGGER, Via.TRIGGER, f"{_RULE_ACTOR}{rule.name}", rule.name, rule.actor
    )


def is_rule_actor(actor: Actor) -> bool:
    """Tell whether an actor is a rule of notifications, and not a trigger."""
    return actor.kind is ActorKind.TRIGGER and actor.id.startswith(_RULE_ACTOR)


def build_held_request(
    held: Sequence[HeldNotification],
    *,
    execution_id: ExecutionId,
    routes: IngestRoutes,
    producer: str,
) -> Request:
    """Ask for the execution that delivers what a rule has held."""
    first = held[0]
    key = f"notification/{first.rule_id}/{HELD}/{first.item['key'].partition('/')[2]}"
    return _build_request(
        first.rule,
        build_held_workload(held),
        execution_id=execution_id,
        routes=routes,
        producer=producer,
        key=key,
    )


def build_notification_request(
    due: DueNotification,
    *,
    execution_id: ExecutionId,
    routes: IngestRoutes,
    producer: str,
    console_url: str = "",
) -> Request:
    """Ask for the execution that delivers a notification."""
    return _build_request(
        due.rule,
        build_workload(due, console_url=console_url),
        execution_id=execution_id,
        routes=routes,
        producer=producer,
        key="/".join(["notification", str(due.rule_id), *_list_key_parts(due)]),
    )


def _build_request(
    rule: NotificationRule,
    workload: dict[str, Any],
    *,
    execution_id: ExecutionId,
    routes: IngestRoutes,
    producer: str,
    key: str,
) -> Request:
    return build_start_request(
        ExecutionRequested(
            path=rule.playbook,
            version=None,
            workload=workload,
            requested_by=f"{ASKER}{rule.name}",
        ),
        owner=(rule.tenant_id, rule.organization_id),
        actor=build_actor(rule),
        execution_id=execution_id,
        routes=routes,
        producer=producer,
        key=key,
    )


def _describe_error(error: Any) -> str | None:
    """Write an error as `noetl run` does: kind, class of the user's exception, message, line."""
    if isinstance(error, dict):
        kind, text = error.get("kind"), summarize_error(error)
        error = f"{kind}: {text}" if kind else text
    return None if error is None else _cut_text(str(error))


def _cut_text(text: str | None) -> str | None:
    return None if text is None else text[:_TEXT_CHARACTERS_MAX]
