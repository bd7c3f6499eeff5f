"""Notifications on PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import asyncpg
from msgspec import structs

from noetl_contracts import codec
from noetl_contracts.identity.actors import Actor
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import Request
from noetl_contracts.requests import notifications
from noetl_contracts.requests.notifications import (
    Cause,
    DueNotification,
    HeldNotification,
    NotificationRule,
    RuleTest,
    SentNotification,
)
from noetl_contracts.requests.quiet_hours import QuietHours
from noetl_storage.ledger import surfaces
from noetl_storage.postgres import event_rows, queries
from noetl_storage.postgres.database import Database

_QUERIES = queries.load_queries("notifications")


class PostgresNotifications:
    """Sends through `noetl.send_notification`, which keeps a notification with its request."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_rule(self, rule: NotificationRule) -> None:
        """Keep a rule under its name, replacing the one before."""
        await self._database.execute_statement(
            _QUERIES["put"],
            rule.tenant_id,
            rule.organization_id,
            rule.name,
            rule.pattern,
            [str(cause) for cause in rule.causes],
            rule.longer_than_s,
            rule.playbook,
            rule.actor,
            rule.quiet,
            [str(cause) for cause in rule.urgent],
        )

    async def find_rule(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> NotificationRule | None:
        """Return a rule by name, or None."""
        row = await self._database.find_row(_QUERIES["find"], tenant_id, organization_id, name)
        return None if row is None else _build_rule(row)

    async def list_rules(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, rules_max: int
    ) -> list[NotificationRule]:
        """Return the rules in the order of their names."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_rules"], tenant_id, organization_id, rules_max
        )
        return [_build_rule(row) for row in rows]

    async def remove_rule(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a rule; False when there was none."""
        row = await self._database.find_row(_QUERIES["remove"], tenant_id, organization_id, name)
        return row is not None

    async def list_due_notifications(
        self, *, since: datetime, notifications_max: int
    ) -> list[DueNotification]:
        """Return ends, late ones and open approvals since a time that rules of everyone wait for.

        Ends come before late ones, and these before approvals, of each the earliest first.
        """
        # This is asked each second, and what follows joins every execution that ended lately.
        if not await self._database.get_value(_QUERIES["has_rules"]):
            return []
        ended = await self._database.fetch_rows(_QUERIES["list_due"], since, notifications_max)
        due = [
            structs.replace(
                _build_due(row, Cause(row["cause"])), ended_at=row["ended_at"], error=row["error"]
            )
            for row in ended
        ]
        if left := notifications_max - len(due):
            late = await self._database.fetch_rows(_QUERIES["list_late"], since, left)
            due += [
                structs.replace(_build_due(row, Cause.LATE), late_since=row["late_since"])
                for row in late
            ]
        if left := notifications_max - len(due):
            passed = await self._database.fetch_rows(_QUERIES["list_passed"], since, left)
            due += [_build_passed(row) for row in passed]
        if left := notifications_max - len(due):
            waiting = await self._database.fetch_rows(_QUERIES["list_waiting"], since, left)
            due += [_build_waiting(row) for row in waiting]
        return due

    async def send_notification(self, due: DueNotification, request: Request) -> bool:
        """Keep a notification with the request of what delivers it.

        False when it was sent, its rule is gone, or its approval was decided.
        """
        begun = await self._database.get_value(
            _QUERIES["send"],
            due.rule_id,
            int(due.execution_id),
            str(due.cause),
            due.subject,
            due.path,
            *event_rows.build_request_columns(request),
        )
        return begun is not None

    async def hold_notification(self, due: DueNotification, item: dict[str, Any]) -> bool:
        """Keep a notification until the quiet hours are over; False when it was kept already."""
        is_held: bool = await self._database.get_value(
            _QUERIES["hold"],
            due.rule_id,
            int(due.execution_id),
            str(due.cause),
            due.subject,
            due.path,
            due.rule.tenant_id,
            due.rule.organization_id,
            item,
        )
        return is_held

    async def list_held_notifications(self, *, notifications_max: int) -> list[HeldNotification]:
        """Return what rules hold, by rule and the earliest first; at most so many of each."""
        rows = await self._database.fetch_rows(_QUERIES["list_held"], notifications_max)
        return [
            HeldNotification(
                rule=_build_rule(row),
                rule_id=row["rule_id"],
                cause=Cause(row["cause"]),
                execution_id=ExecutionId(str(row["execution_id"])),
                subject=row["subject"],
                item=row["item"],
                current_status=row["current_status"],
                has_recovered=row["has_recovered"],
            )
            for row in rows
        ]

    async def send_held_notifications(
        self, held: Sequence[HeldNotification], request: Request
    ) -> bool:
        """Send what a rule holds with one request: all of it or nothing, which is False."""
        begun = await self._database.get_value(
            _QUERIES["send_held"],
            held[0].rule_id,
            [int(notification.execution_id) for notification in held],
            [str(notification.cause) for notification in held],
            [notification.subject for notification in held],
            *event_rows.build_request_columns(request),
        )
        return begun is not None

    async def list_rule_tests(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, tests_max: int
    ) -> dict[str, list[RuleTest]]:
        """Return the latest tests of each rule by its name, the latest first."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_tests"], tenant_id, organization_id, tests_max
        )
        tests: dict[str, list[RuleTest]] = {}
        for row in rows:
            test = RuleTest(
                execution_id=ExecutionId(row["execution_id"]),
                status=row["status"],
                actor=codec.convert_value(row["actor"], Actor),
                sent_at=row["event_time"],
            )
            tests.setdefault(row["name"], []).append(test)
        return tests

    async def list_sent_notifications(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, notifications_max: int
    ) -> list[SentNotification]:
        """Return the latest notifications, the latest first."""
        rows = await self._database.fetch_rows(
            _QUERIES["list_sent"], tenant_id, organization_id, notifications_max
        )
        return [
            SentNotification(
                rule=row["rule_name"],
                cause=Cause(row["cause"]),
                path=row["path"],
                execution_id=ExecutionId(str(row["execution_id"])),
                delivered_by=_read_delivery(row["delivered_by"]),
                status=row["status"],
                sent_at=row["sent_at"],
            )
            for row in rows
        ]


def _build_passed(row: asyncpg.Record) -> DueNotification:
    return structs.replace(
        _build_due(row, Cause.LATE),
        subject=row["late_run"],
        ended_at=row["ended_at"],
        late_since=row["late_since"],
        late_step=row["late_step"],
    )


def _build_waiting(row: asyncpg.Record) -> DueNotification:
    (wait,) = surfaces.read_open_waits([dict(row)])
    return structs.replace(
        _build_due(row, Cause.WAITING),
        status=row["execution_status"],
        subject=notifications.get_approval_id(wait),
        wait=wait,
    )


def _build_due(row: asyncpg.Record, cause: Cause) -> DueNotification:
    return DueNotification(
        rule=_build_rule(row),
        rule_id=row["rule_id"],
        cause=cause,
        execution_id=ExecutionId(str(row["execution_id"])),
        path=row["path"],
        status=row["status"],
        started_at=row["started_at"],
        seen_at=row["seen_at"],
    )


def _build_rule(row: asyncpg.Record) -> NotificationRule:
    return NotificationRule(
        tenant_id=TenantId(row["tenant_id"]),
        organization_id=OrganizationId(row["organization_id"]),
        name=row["name"],
        pattern=row["pattern"],
        causes=tuple(Cause(cause) for cause in row["causes"]),
        longer_than_s=row["longer_than_s"],
        playbook=row["playbook"],
        actor=event_rows.read_actor_column(row["actor"]),
        quiet=None if row["quiet"] is None else codec.convert_value(row["quiet"], QuietHours),
        urgent=tuple(Cause(cause) for cause in row["urgent"]),
    )


def _read_delivery(delivered_by: int | None) -> ExecutionId | None:
    return None if delivered_by is None else ExecutionId(str(delivered_by))
