"""What the HTTP rooms are handed: ports and the deployment's few facts."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypedDict

import msgspec
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_chassis.sealing import Sealer
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.lanes import Pools
from noetl_messaging.ports import Backlogs, DeadLetters, Hints, Publisher
from noetl_planner.domain.draft import Limits
from noetl_planner.http.known import Known
from noetl_planner.http.rooms import Rooms
from noetl_planner.http.seats import SeatLimits, Seats
from noetl_planner.shell.board import Board
from noetl_planner.shell.crowd import Crowd
from noetl_planner.shell.desk import Desk
from noetl_planner.shell.render_child import RenderChildren
from noetl_planner.shell.states import Programs
from noetl_storage.audit_ports import LedgerAudit, Past
from noetl_storage.dead_letter_ports import DeadLetterLog
from noetl_storage.lineage_ports import LineageHistories
from noetl_storage.object_ports import ObjectRows
from noetl_storage.page_ports import HistoryPages
from noetl_storage.ports import (
    LedgerReader,
    Payloads,
    Projections,
    Requests,
    Snapshots,
)
from noetl_storage.registry_ports import Catalog, Credentials
from noetl_storage.retention_ports import Holds
from noetl_storage.trigger_ports import Schedules, Triggers, Webhooks

# Where the application keeps what a request may touch.
SERVICES = "services"


class Place(TypedDict):
    """Whose things they are, as keyword arguments of the ports."""

    tenant_id: TenantId
    organization_id: OrganizationId


class ApiServices(Struct, frozen=True, kw_only=True):
    """Everything that a request may touch; `stop` ends live streams when the process drains."""

    requests: Requests
    projections: Projections
    ledger: LedgerReader
    catalog: Catalog
    credentials: Credentials
    schedules: Schedules
    webhooks: Webhooks
    triggers: Triggers
    dead_letters: DeadLetters
    dead_letter_log: DeadLetterLog
    payloads: Payloads
    hints: Hints
    crowd: Crowd
    board: Board = msgspec.field(default_factory=Board)
    known: Known = msgspec.field(default_factory=Known)
    desk: Desk = msgspec.field(default_factory=Desk)
    rooms: Rooms = msgspec.field(default_factory=Rooms)
    seats: Seats = msgspec.field(default_factory=Seats)
    children: RenderChildren = msgspec.field(default_factory=RenderChildren)
    backlogs: Backlogs
    publisher: Publisher
    clock: Clock
    mint: Callable[[], str]
    sealer: Sealer
    shard_count: int
    snapshots: Snapshots
    audit: LedgerAudit
    past: Past
    holds: Holds
    lineage: LineageHistories
    objects: ObjectRows
    pages: HistoryPages
    tenant_id: TenantId
    organization_id: OrganizationId
    list_problems: Callable[[], Awaitable[dict[str, str]]]
    stop: asyncio.Event
    seat_limits: SeatLimits = SeatLimits()
    # Names by which this API may be called besides those that are private by themselves.
    http_hosts: tuple[str, ...] = ()
    limits: Limits = Limits()
    programs: Programs

    @property
    def tools(self) -> tuple[str, ...]:
        """Return the tool kinds that run here; none named: all that this release has."""
        return self.limits.tools

    @property
    def pools(self) -> Pools:
        """Return the pools of the deployment."""
        return self.limits.pools

    @property
    def place(self) -> Place:
        """Say whose things this API serves."""
        return Place(tenant_id=self.tenant_id, organization_id=self.organization_id)


# Ports are protocols, which request validation could not look into.
Services = NamedDependency[SkipValidation[ApiServices]]
