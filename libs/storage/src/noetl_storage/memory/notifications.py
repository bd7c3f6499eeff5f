"""Notifications in memory."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, structs

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import OpenWait, Request
from noetl_contracts.requests import inbox, notifications
from noetl_contracts.requests.notifications import (
    Cause,
    DueNotification,
    HeldNotification,
    NotificationRule,
    RuleTest,
    SentNotification,
)
from noetl_storage.ledger.surfaces import read_open_waits
from noetl_storage.memory.outbox import MemoryRequests
from noetl_storage.memory.store import MemoryStore

_CAUSES = {"FAILED": Cause.FAILED, "COMPLETED": Cause.RECOVERED}


class StoredRule(Struct, frozen=True, kw_only=True):
    """A rule with its identity, and since when it waits for what it waits for."""

    rule: NotificationRule
    rule_id: int
    watched_from: datetime


class MemoryNotifications:
    """Keeps a notification together with its request."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._requests = MemoryRequests(store)

    async def put_rule(self, rule: NotificationRule) -> None:
        """Keep a rule under its name, replacing the one before."""
        place = (rule.tenant_id, rule.organization_id, rule.name)
        notification_rule: StoredRule | None = self._store.notification_rules.get(place)
        has_same_conditions = notification_rule is not None and _get_conditions(
            notification_rule.rule
        ) == _get_conditions(rule)
        self._store.notification_rule_count += notification_rule is None
        self._store.notification_rules[place] = StoredRule(
            rule=rule,
            rule_id=self._store.notification_rule_count
            if notification_rule is None
            else notification_rule.rule_id,
            watched_from=(
                notification_rule.watched_from
                if notification_rule and has_same_conditions
                else self._store.now()
            ),
        )

    async def find_rule(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> NotificationRule | None:
        """Return a rule by name, or None."""
        notification_rule = self._store.notification_rules.get((tenant_id, organization_id, name))
        return None if notification_rule is None else notification_rule.rule

    async def list_rules(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, rules_max: int
    ) -> list[NotificationRule]:
        """Return the rules in the order of their names."""
        places = sorted(
            place
            for place in self._store.notification_rules
            if place[:2] == (tenant_id, organization_id)
        )
        return [self._store.notification_rules[place].rule for place in places][:rules_max]

    async def remove_rule(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a rule; False when there was none."""
        place = (tenant_id, organization_id, name)
        return self._store.notification_rules.pop(place, None) is not None

    async def list_due_notifications(
        self, *, since: datetime, notifications_max: int
    ) -> list[DueNotification]:
        """Return ends, late ones and open approvals since a time that rules wait for."""
        pairs = [
            (row, stored)
            for row in self._list_executions()
            for stored in self._store.notification_rules.values()
        ]
        ended = [
            self._build_due(row, stored, _CAUSES[row["status"]])
            for row, stored in pairs
            if row["ended_at"] is not None
            and row["ended_at"] >= max(since, stored.watched_from)
            and self._is_end_due(stored, row)
        ]
        ended.sort(key=lambda one: (one.ended_at, int(one.execution_id), one.rule_id))
        late = [
            structs.replace(
                self._build_due(row, stored, Cause.LATE), late_since=_get_deadline(stored, row)
            )
            for row, stored in pairs
            if stored.rule.longer_than_s
            and row["ended_at"] is None
            and row["started_at"] is not None
            and max(since, stored.watched_from) <= _get_deadline(stored, row) <= self._store.now()
            and self._is_due(stored, row, Cause.LATE)
        ]
        late.sort(key=lambda one: (one.started_at, int(one.execution_id), one.rule_id))
        due = [*ended, *late, *self._list_passed(since), *self._list_waiting(since)]
        return due[:notifications_max]

    async def send_notification(self, due: DueNotification, request: Request) -> bool:
        """Keep a notification with the request of what delivers it; False when it was sent."""
        if not self._keep(due, delivered_by=request.execution_id):
            return False
        await self._requests.submit_request(request)
        return True

    async def hold_notification(self, due: DueNotification, item: dict[str, Any]) -> bool:
        """Keep a notification until the quiet hours are over; False when it was kept already."""
        if not self._keep(due, delivered_by=None):
            return False
        self._store.notification_items[_build_key(due)] = item
        return True

    async def list_held_notifications(self, *, notifications_max: int) -> list[HeldNotification]:
        """Return what rules hold, by rule and the earliest first; at most so many of each."""
        executions = {row["execution_id"]: row for row in self._list_executions()}
        open_approvals = {notifications.get_approval_id(wait) for wait in self._list_waits()}
        held = []
        for rule_id, stored in sorted(self._list_rules().items()):
            of_rule = [
                HeldNotification(
                    rule=stored.rule,
                    rule_id=rule_id,
                    cause=cause,
                    execution_id=execution_id,
                    subject=subject,
                    item=self._store.notification_items[key],
                    current_status=executions.get(execution_id, {}).get("status"),
                    has_recovered=cause is Cause.FAILED
                    and self._has_recovered(executions.get(execution_id)),
                )
                for key in self._store.notification_items
                for holder, execution_id, cause, subject in [key]
                if holder == rule_id and (cause is not Cause.WAITING or subject in open_approvals)
            ]
            held += of_rule[:notifications_max]
        return held

    async def send_held_notifications(
        self, held: Sequence[HeldNotification], request: Request
    ) -> bool:
        """Send what a rule holds with one request: all of it or nothing, which is False."""
        keys = [_build_key(notification) for notification in held]
        open_approvals = {notifications.get_approval_id(wait) for wait in self._list_waits()}
        is_whole = all(
            key in self._store.notification_items
            and (key[2] is not Cause.WAITING or key[3] in open_approvals)
            for key in keys
        )
        if held[0].rule_id not in self._list_rules() or not is_whole:
            return False
        for key in keys:
            del self._store.notification_items[key]
            self._store.notifications[key] = structs.replace(
                self._store.notifications[key],
                delivered_by=request.execution_id,
                status="PENDING",
                sent_at=self._store.now(),
            )
        await self._requests.submit_request(request)
        return True

    def _keep(self, due: DueNotification, *, delivered_by: ExecutionId | None) -> bool:
        """Keep a notification once, while its rule is there and its approval is open."""
        rules, key = self._list_rules(), _build_key(due)
        if due.rule_id not in rules or key in self._store.notifications:
            return False
        if due.wait is not None and not self._is_open(due.wait):
            return False
        rule = rules[due.rule_id].rule
        self._store.notifications[key] = SentNotification(
            rule=rule.name,
            cause=due.cause,
            path=due.path,
            execution_id=due.execution_id,
            delivered_by=delivered_by,
            status="HELD" if delivered_by is None else "PENDING",
            sent_at=self._store.now(),
        )
        self._store.notification_owners[key] = (rule.tenant_id, rule.organization_id)
        return True

    def _list_rules(self) -> dict[int, StoredRule]:
        return {stored.rule_id: stored for stored in self._store.notification_rules.values()}

    async def list_rule_tests(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, tests_max: int
    ) -> dict[str, list[RuleTest]]:
        """Return the latest tests of each rule by its name, the latest first."""
        statuses = {row["execution_id"]: row["status"] for row in self._list_executions()}
        tests: dict[str, list[RuleTest]] = {}
        for record in self._store.administration.get((tenant_id, organization_id), []):
            if record.action == notifications.REMOVED:
                tests.pop(record.target, None)
            elif record.action == notifications.TESTED:
                test = RuleTest(
                    execution_id=ExecutionId(record.details["execution_id"]),
                    status=statuses.get(record.details["execution_id"]),
                    actor=record.actor,
                    sent_at=record.event_time,
                )
                tests.setdefault(record.target, []).insert(0, test)
        return {
            name: of_rule[:tests_max]
            for name, of_rule in sorted(tests.items())
            if (tenant_id, organization_id, name) in self._store.notification_rules
        }

    async def list_sent_notifications(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, notifications_max: int
    ) -> list[SentNotification]:
        """Return the latest notifications, the latest first."""
        statuses = {row["execution_id"]: row["status"] for row in self._list_executions()}
        rules = self._list_rules()
        sent = [
            _with_status(
                notification,
                statuses.get(notification.delivered_by)
                if notification.delivered_by is not None or key[0] in rules
                else "DROPPED",
            )
            for key, notification in self._store.notifications.items()
            if self._store.notification_owners[key] == (tenant_id, organization_id)
        ]
        sent.sort(key=lambda one: (one.sent_at, int(one.execution_id)), reverse=True)
        return sent[:notifications_max]

    def _list_passed(self, since: datetime) -> list[DueNotification]:
        due = [
            structs.replace(
                self._build_due(row, stored, Cause.LATE),
                subject=mark["run_id"] or "",
                late_since=datetime.fromisoformat(mark["since"]),
                late_step=mark["step"],
            )
            for row in self._list_executions()
            for mark in row.get("late") or ()
            for stored in self._store.notification_rules.values()
            if not stored.rule.longer_than_s
            and datetime.fromisoformat(mark["since"]) >= max(since, stored.watched_from)
            and self._is_covered(stored, row, Cause.LATE)
            and self._is_new(stored, row, Cause.LATE, mark["run_id"] or "")
        ]
        due.sort(key=lambda one: (one.late_since, int(one.execution_id), one.subject, one.rule_id))
        return due

    def _list_waiting(self, since: datetime) -> list[DueNotification]:
        due = [
            structs.replace(
                self._build_due(execution, stored, Cause.WAITING),
                subject=notifications.get_approval_id(wait),
                wait=wait,
            )
            for wait in self._list_waits()
            for execution in self._list_executions()
            if execution["execution_id"] == wait.execution_id and execution["ended_at"] is None
            for stored in self._store.notification_rules.values()
            if max(since, stored.watched_from) <= _get_since(stored, wait) <= self._store.now()
            and self._is_covered(stored, execution, Cause.WAITING)
            and self._is_new(stored, execution, Cause.WAITING, notifications.get_approval_id(wait))
        ]
        due.sort(key=lambda one: (_get_wait_order(one), one.rule_id))
        return due

    def _list_waits(self) -> list[OpenWait]:
        commands = self._store.row_by_key_by_surface.get("command", {}).values()
        return [
            wait
            for wait in read_open_waits(commands)
            if wait.wait.mode == inbox.APPROVAL and self._is_open(wait)
        ]

    def _is_open(self, wait: OpenWait) -> bool:
        """Tell whether a command still waits, and nobody has decided."""
        is_parked = any(
            open_wait.command_id == wait.command_id and open_wait.wait.address == wait.wait.address
            for open_wait in read_open_waits(
                self._store.row_by_key_by_surface.get("command", {}).values()
            )
        )
        return is_parked and not any(
            (stored.letter.tenant_id, stored.letter.organization_id, stored.letter.address)
            == (wait.tenant_id, wait.organization_id, wait.wait.address)
            for stored in self._store.letter_by_id.values()
        )

    def _list_executions(self) -> list[dict[str, Any]]:
        return list(self._store.row_by_key_by_surface.get("execution", {}).values())

    def _build_due(self, row: dict[str, Any], stored: StoredRule, cause: Cause) -> DueNotification:
        names = ("execution_id", "path", "status", "started_at", "ended_at", "error")
        return DueNotification(
            rule=stored.rule,
            rule_id=stored.rule_id,
            cause=cause,
            seen_at=self._store.now(),
            **{name: row[name] for name in names},
        )

    def _is_end_due(self, stored: StoredRule, row: dict[str, Any]) -> bool:
        cause = _CAUSES.get(row["status"])
        lasted = row["ended_at"] - (row["started_at"] or row["ended_at"])
        return (
            cause is not None
            and lasted >= timedelta(seconds=stored.rule.longer_than_s)
            and (cause is Cause.FAILED or self._has_failed_before(row))
            and self._is_due(stored, row, cause)
        )

    def _is_due(self, stored: StoredRule, row: dict[str, Any], cause: Cause) -> bool:
        return (
            row["parent_execution_id"] is None
            and self._is_covered(stored, row, cause)
            and self._is_new(stored, row, cause, "")
        )

    def _is_covered(self, stored: StoredRule, row: dict[str, Any], cause: Cause) -> bool:
        rule = stored.rule
        return (
            (rule.tenant_id, rule.organization_id) == (row["tenant_id"], row["organization_id"])
            and cause in rule.causes
            and notifications.is_path_matched(rule.pattern, row["path"])
        )

    def _is_new(self, stored: StoredRule, row: dict[str, Any], cause: Cause, subject: str) -> bool:
        """Tell whether nobody was told yet; what delivers a notification is itself none."""
        key = (stored.rule_id, row["execution_id"], cause, subject)
        deliveries = {sent.delivered_by for sent in self._store.notifications.values()}
        return key not in self._store.notifications and row["execution_id"] not in deliveries

    def _has_recovered(self, row: dict[str, Any] | None) -> bool:
        """Tell whether the latest execution of the path after this one completed."""
        place = ("tenant_id", "organization_id", "path")
        later = [
            other
            for other in self._list_executions()
            if row is not None
            and all(other[name] == row[name] for name in place)
            and other["status"] in _CAUSES
            and int(other["execution_id"]) > int(row["execution_id"])
        ]
        latest = max(later, key=lambda other: int(other["execution_id"]), default=None)
        return latest is not None and latest["status"] == "COMPLETED"

    def _has_failed_before(self, row: dict[str, Any]) -> bool:
        place = ("tenant_id", "organization_id", "path")
        earlier = [
            other
            for other in self._list_executions()
            if all(other[name] == row[name] for name in place)
            and other["status"] in _CAUSES
            and int(other["execution_id"]) < int(row["execution_id"])
            and other["ended_at"] <= row["ended_at"]
        ]
        latest = max(earlier, key=lambda other: int(other["execution_id"]), default=None)
        return latest is not None and latest["status"] == "FAILED"


def _build_key(
    notification: DueNotification | HeldNotification,
) -> tuple[int, ExecutionId, Cause, str]:
    return (
        notification.rule_id,
        notification.execution_id,
        notification.cause,
        notification.subject,
    )


def _get_deadline(stored: StoredRule, row: dict[str, Any]) -> datetime:
    started_at: datetime = row["started_at"]
    return started_at + timedelta(seconds=stored.rule.longer_than_s)


def _get_since(stored: StoredRule, wait: OpenWait) -> datetime:
    """Return from when on a rule wants to be told of a wait; one without a time has waited."""
    since = wait.since or stored.watched_from
    return since + timedelta(seconds=stored.rule.longer_than_s)


def _get_wait_order(due: DueNotification) -> tuple[str, int]:
    return (str(due.wait.since), int(due.wait.command_id)) if due.wait else ("", 0)


def _get_conditions(rule: NotificationRule) -> tuple[object, ...]:
    """Return when a rule is due: a rule that has others now begins anew."""
    return rule.pattern, rule.causes, rule.longer_than_s


def _with_status(sent: SentNotification, status: str | None) -> SentNotification:
    return sent if status is None else structs.replace(sent, status=status)
