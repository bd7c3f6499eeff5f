"""What starts playbooks, in memory: triggers, schedules, webhooks."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import structs

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger.records import Request
from noetl_contracts.requests.schedules import Schedule, SkippedTimes, SkipReason
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
_SKIPS_KEPT_MAX = 100


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
                skipped_count=earlier.skipped_count,
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
        removed = self._store.schedule_by_place.pop((tenant_id, organization_id, name), None)
        if removed is not None:
            self._store.skips_by_schedule.pop(removed.schedule_id, None)
        return removed is not None

    def _is_suspended(self, schedule: Schedule) -> bool:
        quota = self._store.quotas.get(schedule.tenant_id)
        return quota is not None and quota.is_suspended

    async def list_due_schedules(self, *, now: datetime, schedules_max: int) -> list[Schedule]:
        """Return enabled schedules whose next time has come, the longest due first.

        Those of a suspended tenant wait.
        """
        due = [
            (schedule.next_at, schedule.schedule_id, schedule)
            for schedule in self._store.schedule_by_place.values()
            if schedule.is_enabled
            and schedule.next_at is not None
            and schedule.next_at <= now
            and not self._is_suspended(schedule)
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

    async def skip_times(
        self, schedule: Schedule, skipped: SkippedTimes, *, next_at: datetime | None
    ) -> bool:
        """Move on without an execution, and record the times that are passed over."""
        unchanged = self._find_unchanged(schedule)
        if unchanged is None:
            return False
        skipped_count = unchanged.skipped_count + skipped.times
        self._keep_schedule(
            structs.replace(unchanged, next_at=next_at, skipped_count=skipped_count)
        )
        skips = self._store.skips_by_schedule.setdefault(schedule.schedule_id, [])
        newest = skips[-1] if skips else None
        if newest is not None and _is_same_overlap(newest, skipped):
            skipped = structs.replace(
                skipped, first_at=newest.first_at, times=newest.times + skipped.times
            )
        others = [skip for skip in skips if skip.first_at != skipped.first_at]
        skips[:] = sorted([*others, skipped], key=lambda skip: skip.first_at)[-_SKIPS_KEPT_MAX:]
        return True

    async def list_skipped_times(
        self, schedule_ids: Sequence[str], *, skips_max: int
    ) -> dict[str, list[SkippedTimes]]:
        """Return the newest records of times passed over, newest first, by their schedule."""
        stored = self._store.skips_by_schedule
        return {
            schedule_id: stored[schedule_id][::-1][:skips_max]
            for schedule_id in schedule_ids
            if stored.get(schedule_id) and skips_max
        }

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


def _is_same_overlap(newest: SkippedTimes, skipped: SkippedTimes) -> bool:
    return (
        newest.reason is skipped.reason is SkipReason.OVERLAP
        and newest.running_execution_id == skipped.running_execution_id
        and newest.last_at < skipped.first_at
    )


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
