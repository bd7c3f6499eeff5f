"""Shows what waits and runs, by stage kind and by the tenants with most of it."""

from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from noetl_chassis.clock import Clock
from noetl_chassis.observability import instruments, names
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.ledger.records import STEP_KIND, LiveCommandCount
from noetl_contracts.status import CommandStatus

# A gauge has a series for each of them: of more, the rest counts together.
TENANTS_MAX = 20
OTHERS = "(others)"
# As often as Prometheus usually asks.
INTERVAL_S = 15.0
STAGE_KINDS = (STEP_KIND, "loop", "fanout", "reduce")
STATUS_LABELS = {CommandStatus.ISSUED: "waiting", CommandStatus.RUNNING: "running"}

# Tenant, organization, kind of the stage and status.
Place = tuple[str, str, str, str]


class LiveCommands(Protocol):
    """The read models, as far as they are counted here."""

    async def count_live_commands(self) -> list[LiveCommandCount]:
        """Count live executions' commands that wait or run, by tenant, organization and stage."""


class BacklogDetail:
    """Measures the backlog again and again; `tenant_id` is shown with zeros too."""

    def __init__(
        self,
        commands: LiveCommands,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
        clock: Clock,
    ) -> None:
        self._commands = commands
        self._clock = clock
        self._measured_at_s: float | None = None
        self._zeros: Counter[Place] = Counter(
            {
                (tenant_id, organization_id, kind, status): 0
                for kind in STAGE_KINDS
                for status in STATUS_LABELS.values()
            }
        )

    async def measure_backlog(self) -> None:
        """Count anew, if the last time is long enough ago."""
        now_s = self._clock.monotonic_s()
        if self._measured_at_s is not None and now_s - self._measured_at_s < INTERVAL_S:
            return
        counts = count_places(await self._commands.count_live_commands())
        self._measured_at_s = now_s
        instruments.clear_gauge(names.BACKLOG_DETAIL)
        for (tenant, organization, kind, status), commands in {**self._zeros, **counts}.items():
            labels = {
                names.TENANT: tenant,
                names.ORGANIZATION: organization,
                names.STAGE_KIND: kind,
                names.STATUS: status,
            }
            instruments.set_gauge(names.BACKLOG_DETAIL, commands, labels=labels)


def count_places(counts: Iterable[LiveCommandCount]) -> Counter[Place]:
    """Add up by place; tenants beyond those with most are one."""
    live_counts = list(counts)
    by_tenant: Counter[str] = Counter()
    for count in live_counts:
        by_tenant[count.tenant_id] += count.commands
    shown = {tenant for tenant, _ in by_tenant.most_common(TENANTS_MAX)}
    places: Counter[Place] = Counter()
    for count in live_counts:
        owner = (
            (count.tenant_id, count.organization_id)
            if count.tenant_id in shown
            else (OTHERS, OTHERS)
        )
        status = STATUS_LABELS[CommandStatus(count.status)]
        places[*owner, count.stage_kind, status] += count.commands
    return places
