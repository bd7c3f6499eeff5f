"""Starts what notifies of executions that failed, recovered, are late or wait: each once a rule."""

import itertools
from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts import subjects
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests import cron, notifications
from noetl_messaging.streams.ports import Hints
from noetl_reaper.sweeps.node_lease import NodeLease
from noetl_storage.ports.registry_ports import Notifications

PRODUCER = "notifier"
# Notifications that one message after quiet hours tells of; more come in the next one.
HELD_MAX = 50

log = structlog.get_logger(__name__)


class NotifierLimits(Struct, frozen=True, kw_only=True):
    """How far back and how much one turn looks, over how many shards executions are spread.

    `console_url` is the console's public address, for links to it; empty where there is none.
    """

    lookback_s: float
    notifications_max: int
    routes: IngestRoutes
    console_url: str = ""


class Notifier:
    """Sends what is due; a second notifier finds it already sent."""

    def __init__(
        self,
        *,
        notifications: Notifications,
        hints: Hints,
        clock: Clock,
        numbers: NodeLease,
        limits: NotifierLimits,
    ) -> None:
        self._notifications = notifications
        self._hints = hints
        self._clock = clock
        self._numbers = numbers
        self._limits = limits

    async def send_due(self) -> None:
        """Send every notification that is due; raises what the store raises."""
        now = self._clock.now()
        due = await self._notifications.list_due_notifications(
            since=now - timedelta(seconds=self._limits.lookback_s),
            notifications_max=self._limits.notifications_max,
        )
        immediate = []
        for notification in due:
            if _is_held(notification.rule, notification.cause, now):
                await self._hold_notification(notification)
            else:
                immediate.append(notification)
        held = await self._notifications.list_held_notifications(notifications_max=HELD_MAX)
        released = [item for item in held if not _is_held(item.rule, item.cause, now)]
        if not immediate and not released:
            return
        mint = await self._numbers.lease_node()
        sent = 0
        for notification in immediate:
            sent += await self._send_notification(notification, mint)
        for _, of_rule in itertools.groupby(released, key=lambda item: item.rule_id):
            sent += await self._send_held(list(of_rule), mint)
        if sent:
            await self._hints.notify(subjects.build_hint_subject("outbox"))

    async def _hold_notification(self, due: notifications.DueNotification) -> None:
        item = notifications.build_held_item(due, console_url=self._limits.console_url)
        if await self._notifications.hold_notification(due, item):
            log.info(
                "notification held",
                rule=due.rule.name,
                cause=due.cause,
                execution_id=due.execution_id,
            )

    async def _send_held(
        self, held: list[notifications.HeldNotification], mint: Callable[[], str]
    ) -> bool:
        """Send what a rule has held as one."""
        request = notifications.build_held_request(
            held, execution_id=ExecutionId(mint()), routes=self._limits.routes, producer=PRODUCER
        )
        is_sent = await self._notifications.send_held_notifications(held, request)
        if is_sent:
            log.info(
                "held notifications sent",
                rule=held[0].rule.name,
                notifications=len(held),
                delivered_by=request.execution_id,
            )
        return is_sent

    async def _send_notification(
        self, due: notifications.DueNotification, mint: Callable[[], str]
    ) -> bool:
        request = notifications.build_notification_request(
            due,
            execution_id=ExecutionId(mint()),
            routes=self._limits.routes,
            producer=PRODUCER,
            console_url=self._limits.console_url,
        )
        is_sent = await self._notifications.send_notification(due, request)
        if is_sent:
            log.info(
                "notification sent",
                rule=due.rule.name,
                cause=due.cause,
                execution_id=due.execution_id,
                delivered_by=request.execution_id,
            )
        return is_sent


def _is_held(
    rule: notifications.NotificationRule, cause: notifications.Cause, now: datetime
) -> bool:
    """Tell whether a rule holds back what comes now; it holds nothing in an unknown time zone."""
    try:
        return notifications.is_held(rule, cause, now)
    except cron.TimezoneRefused as error:
        log.warning("quiet hours ignored", rule=rule.name, reason=str(error))
        return False
