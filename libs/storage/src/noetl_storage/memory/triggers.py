"""What starts playbooks, in memory: triggers, schedules, webhooks, notifications."""

from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct, structs

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import Request
from noetl_contracts.requests import notifications
from noetl_contracts.requests.notifications import (
    Cause,
    DueNotification,
    NotificationRule,
    SentNotification,
)
from noetl_contracts.requests.schedules import Schedule
from noetl_contracts.requests.triggers import Trigger
from noetl_contracts.requests.webhooks import Webhook
from noetl_storage.memory.outbox import MemoryRequests
from noetl_storage.memory.store import MemoryStore


class MemoryTriggers:
    """Keeps what messages start."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def put_trigger(self, trigger: Trigger) -> None:
        """Keep a trigger under its name, replacing the one before."""
        name_key = (trigger.tenant_id, trigger.organization_id, trigger.name)
        self._store.trigger_by_place[name_key] = trigger

    async def find_trigger(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Trigger | None:
        """Return a trigger by name, or None."""
        return self._store.trigger_by_place.get((tenant_id, organization_id, name))

    async def list_triggers(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, triggers_max: int
    ) -> list[Trigger]:
        """Return the triggers in the order of their names."""
        owner = (tenant_id, organization_id)
        places = sorted(
            name_key for name_key in self._store.trigger_by_place if name_key[:2] == owner
        )
        return [self._store.trigger_by_place[name_key] for name_key in places][:triggers_max]

    async def remove_trigger(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a trigger; False when there was none."""
        name_key = (tenant_id, organization_id, name)
        return self._store.trigger_by_place.pop(name_key, None) is not None

    async def claim_place(
        self, trigger: Trigger, message_key: str, execution_id: ExecutionId, *, unasked_s: float
    ) -> ExecutionId | None:
        """Claim a place for a message's execution; None while all are taken."""
        name_key = (trigger.tenant_id, trigger.organization_id, trigger.name)
        known_names = self._store.trigger_by_place.get(name_key)
        if known_names is None or known_names.max_in_flight is None:
            return execution_id
        claims = self._store.claim_by_message_by_trigger.setdefault(name_key, {})
        if message_key in claims:
            return claims[message_key][0]
        if len(claims) >= known_names.max_in_flight:
            self._free_places(claims, claimed_before=self._store.time_after(-unasked_s))
        if len(claims) >= known_names.max_in_flight:
            return None
        claims[message_key] = execution_id, self._store.now()
        return execution_id

    def _free_places(
        self, claims: dict[str, tuple[ExecutionId, datetime]], *, claimed_before: datetime
    ) -> None:
        rows = self._store.row_by_key_by_surface.get("execution", {})
        ended = {row["execution_id"] for row in rows.values() if row["ended_at"] is not None}
        request_ids = {stored.request.request_id for stored in self._store.request_by_id.values()}
        for key, (execution_id, claimed_at) in list(claims.items()):
            is_unasked = (
                claimed_at < claimed_before and f"execute-{execution_id}" not in request_ids
            )
            if execution_id in ended or is_unasked:
                del claims[key]

    async def release_place(self, trigger: Trigger, message_key: str) -> None:
        """Give the place of a message back; what is not there is no error."""
        name_key = (trigger.tenant_id, trigger.organization_id, trigger.name)
        self._store.claim_by_message_by_trigger.get(name_key, {}).pop(message_key, None)


_Place = tuple[str, str, str]


class MemorySchedules:
    """Fires a schedule only as long as it is as it was read."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._requests = MemoryRequests(store)

    async def put_schedule(self, schedule: Schedule) -> Schedule:
        """Keep a schedule under its name; one that is there keeps its identity and its past."""
        earlier = self._store.schedule_by_place.get(_get_schedule_key(schedule))
        stored = schedule
        if earlier is not None:
            stored = structs.replace(
                schedule,
                schedule_id=earlier.schedule_id,
                revision=earlier.revision + 1,
                last_at=earlier.last_at,
                last_execution_id=earlier.last_execution_id,
            )
        return self._keep_schedule(stored)

    async def find_schedule(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Schedule | None:
        """Return a schedule by name, or None."""
        return self._store.schedule_by_place.get((tenant_id, organization_id, name))

    async def list_schedules(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, schedules_max: int
    ) -> list[Schedule]:
        """Return the schedules in the order of their names."""
        owner = (tenant_id, organization_id)
        places = sorted(
            name_key for name_key in self._store.schedule_by_place if name_key[:2] == owner
        )
        return [self._store.schedule_by_place[name_key] for name_key in places][:schedules_max]

    async def switch_schedule(self, schedule: Schedule) -> bool:
        """Keep whether a schedule is enabled, and its next time; False when it was changed."""
        stored = self._store.schedule_by_place.get(_get_schedule_key(schedule))
        if stored is None or stored.revision != schedule.revision:
            return False
        self._keep_schedule(
            structs.replace(
                stored,
                revision=stored.revision + 1,
                is_enabled=schedule.is_enabled,
                next_at=schedule.next_at,
            )
        )
        return True

    async def remove_schedule(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a schedule; False when there was none."""
        name_key = (tenant_id, organization_id, name)
        return self._store.schedule_by_place.pop(name_key, None) is not None

    async def list_due_schedules(self, *, now: datetime, schedules_max: int) -> list[Schedule]:
        """Return enabled schedules of everyone whose next time has come, the longest due first."""
        due = [
            (schedule.next_at, schedule.schedule_id, schedule)
            for schedule in self._store.schedule_by_place.values()
            if schedule.is_enabled and schedule.next_at is not None and schedule.next_at <= now
        ]
        return [schedule for _, _, schedule in sorted(due, key=lambda one: one[:2])][:schedules_max]

    async def fire_schedule(
        self,
        schedule: Schedule,
        *,
        nominal_at: datetime,
        next_at: datetime | None,
        request: Request,
    ) -> ExecutionId | None:
        """Ask for an execution and move on; None when the schedule is no longer as it was read."""
        unchanged = self._find_unchanged(schedule)
        if unchanged is None:
            return None
        execution_id = await self._requests.submit_request(request)
        self._keep_schedule(
            structs.replace(
                unchanged, next_at=next_at, last_at=nominal_at, last_execution_id=execution_id
            )
        )
        return execution_id

    async def skip_times(self, schedule: Schedule, *, next_at: datetime | None) -> bool:
        """Move on without an execution; False when the schedule is no longer as it was read."""
        unchanged = self._find_unchanged(schedule)
        if unchanged is None:
            return False
        self._keep_schedule(structs.replace(unchanged, next_at=next_at))
        return True

    def _find_unchanged(self, schedule: Schedule) -> Schedule | None:
        stored = self._store.schedule_by_place.get(_get_schedule_key(schedule))
        is_same = stored is not None and (
            (stored.schedule_id, stored.revision, stored.next_at, stored.is_enabled)
            == (schedule.schedule_id, schedule.revision, schedule.next_at, True)
        )
        return stored if is_same else None

    def _keep_schedule(self, schedule: Schedule) -> Schedule:
        self._store.schedule_by_place[_get_schedule_key(schedule)] = schedule
        return schedule


def _get_schedule_key(schedule: Schedule) -> _Place:
    return schedule.tenant_id, schedule.organization_id, schedule.name


class MemoryWebhooks:
    """Keeps what calls from outside start."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    async def put_webhook(self, webhook: Webhook) -> None:
        """Keep a webhook under its name, replacing the one before."""
        name_key = (webhook.tenant_id, webhook.organization_id, webhook.name)
        self._store.webhook_by_place[name_key] = webhook

    async def find_webhook(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Webhook | None:
        """Return a webhook by name, or None."""
        return self._store.webhook_by_place.get((tenant_id, organization_id, name))

    async def list_webhooks(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, webhooks_max: int
    ) -> list[Webhook]:
        """Return the webhooks in the order of their names."""
        owner = (tenant_id, organization_id)
        places = sorted(
            name_key for name_key in self._store.webhook_by_place if name_key[:2] == owner
        )
        return [self._store.webhook_by_place[name_key] for name_key in places][:webhooks_max]

    async def remove_webhook(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a webhook; False when there was none."""
        name_key = (tenant_id, organization_id, name)
        return self._store.webhook_by_place.pop(name_key, None) is not None


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
        has_same_subject = notification_rule is not None and _get_subject(
            notification_rule.rule
        ) == _get_subject(rule)
        self._store.notification_rule_count += notification_rule is None
        self._store.notification_rules[place] = StoredRule(
            rule=rule,
            rule_id=self._store.notification_rule_count
            if notification_rule is None
            else notification_rule.rule_id,
            watched_from=(
                notification_rule.watched_from
                if notification_rule and has_same_subject
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
        """Return ends since a time, and late ones, that rules of everyone wait for."""
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
            self._build_due(row, stored, Cause.LATE)
            for row, stored in pairs
            if row["ended_at"] is None
            and row["started_at"] is not None
            and max(since, stored.watched_from) <= _get_deadline(stored, row) <= self._store.now()
            and self._is_due(stored, row, Cause.LATE)
        ]
        late.sort(key=lambda one: (one.started_at, int(one.execution_id), one.rule_id))
        return [*ended, *late][:notifications_max]

    async def send_notification(self, due: DueNotification, request: Request) -> bool:
        """Keep a notification with the request of what delivers it; False when it was sent."""
        rules = {stored.rule_id: stored.rule for stored in self._store.notification_rules.values()}
        key = (due.rule_id, due.execution_id, due.cause)
        if due.rule_id not in rules or key in self._store.notifications:
            return False
        self._store.notifications[key] = SentNotification(
            rule=rules[due.rule_id].name,
            cause=due.cause,
            path=due.path,
            execution_id=due.execution_id,
            delivered_by=request.execution_id,
            status="PENDING",
            sent_at=self._store.now(),
        )
        self._store.notification_owners[key] = (request.tenant_id, request.organization_id)
        await self._requests.submit_request(request)
        return True

    async def list_sent_notifications(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, notifications_max: int
    ) -> list[SentNotification]:
        """Return the latest notifications, the latest first."""
        statuses = {row["execution_id"]: row["status"] for row in self._list_executions()}
        sent = [
            _with_status(notification, statuses.get(notification.delivered_by))
            for key, notification in self._store.notifications.items()
            if self._store.notification_owners[key] == (tenant_id, organization_id)
        ]
        sent.sort(key=lambda one: (one.sent_at, int(one.execution_id)), reverse=True)
        return sent[:notifications_max]

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
        rule = stored.rule
        deliveries = {sent.delivered_by for sent in self._store.notifications.values()}
        return (
            (rule.tenant_id, rule.organization_id) == (row["tenant_id"], row["organization_id"])
            and row["parent_execution_id"] is None
            and cause in rule.causes
            and notifications.is_path_matched(rule.pattern, row["path"])
            and (stored.rule_id, row["execution_id"], cause) not in self._store.notifications
            and row["execution_id"] not in deliveries
        )

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


def _get_deadline(stored: StoredRule, row: dict[str, Any]) -> datetime:
    started_at: datetime = row["started_at"]
    return started_at + timedelta(seconds=stored.rule.longer_than_s)


def _get_subject(rule: NotificationRule) -> tuple[object, ...]:
    return rule.pattern, rule.causes, rule.longer_than_s


def _with_status(sent: SentNotification, status: str | None) -> SentNotification:
    return sent if status is None else structs.replace(sent, status=status)
