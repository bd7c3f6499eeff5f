"""Starts what notifies of executions that failed, recovered, are late or wait: each once a rule."""

from collections.abc import Callable
from datetime import timedelta

import structlog
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts import subjects
from noetl_contracts.ids import ExecutionId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests import notifications
from noetl_messaging.streams.ports import Hints
from noetl_reaper.sweeps.node_lease import NodeLease
from noetl_storage.ports.registry_ports import Notifications

PRODUCER = "notifier"

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
        due = await self._notifications.list_due_notifications(
            since=self._clock.now() - timedelta(seconds=self._limits.lookback_s),
            notifications_max=self._limits.notifications_max,
        )
        if not due:
            return
        mint = await self._numbers.lease_node()
        sent = 0
        for notification in due:
            sent += await self._send_notification(notification, mint)
        if sent:
            await self._hints.notify(subjects.build_hint_subject("outbox"))

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
