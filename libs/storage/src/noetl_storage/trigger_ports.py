"""What is asked of storage by whatever starts playbooks."""

from datetime import datetime
from typing import Protocol

from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId
from noetl_contracts.ledger import Request
from noetl_contracts.schedules import Schedule
from noetl_contracts.triggers import Trigger
from noetl_contracts.webhooks import Webhook


class Schedules(Protocol):
    """What starts playbooks by the clock; a firing and its request are one transaction."""

    async def put(self, schedule: Schedule) -> Schedule:
        """Keep a schedule under its name; one that is there keeps its identity and its past."""

    async def find(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Schedule | None:
        """Return a schedule by name, or None."""

    async def list_schedules(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, schedules_max: int
    ) -> list[Schedule]:
        """Return the schedules in the order of their names."""

    async def switch(self, schedule: Schedule) -> bool:
        """Keep whether a schedule is enabled, and its next time; False when it was changed."""

    async def remove(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a schedule; False when there was none."""

    async def list_due(self, *, now: datetime, schedules_max: int) -> list[Schedule]:
        """Return enabled schedules of everyone whose next time has come, the longest due first."""

    async def fire(
        self,
        schedule: Schedule,
        *,
        nominal_at: datetime,
        next_at: datetime | None,
        request: Request,
    ) -> ExecutionId | None:
        """Ask for an execution and move on; None when the schedule is no longer as it was read."""

    async def pass_over(self, schedule: Schedule, *, next_at: datetime | None) -> bool:
        """Move on without an execution; False when the schedule is no longer as it was read."""


class Webhooks(Protocol):
    """What calls from outside start."""

    async def put(self, webhook: Webhook) -> None:
        """Keep a webhook under its name, replacing the one before."""

    async def find(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Webhook | None:
        """Return a webhook by name, or None."""

    async def list_webhooks(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, webhooks_max: int
    ) -> list[Webhook]:
        """Return the webhooks in the order of their names."""

    async def remove(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a webhook; False when there was none."""


class Triggers(Protocol):
    """What messages start."""

    async def put(self, trigger: Trigger) -> None:
        """Keep a trigger under its name, replacing the one before."""

    async def find(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> Trigger | None:
        """Return a trigger by name, or None."""

    async def list_triggers(
        self, *, tenant_id: TenantId, organization_id: OrganizationId, triggers_max: int
    ) -> list[Trigger]:
        """Return the triggers in the order of their names."""

    async def remove(
        self, name: str, *, tenant_id: TenantId, organization_id: OrganizationId
    ) -> bool:
        """Remove a trigger; False when there was none."""
