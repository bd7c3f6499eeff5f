"""What API handlers use: stores, caches, limits and settings, with the cache of playbooks."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypedDict

import msgspec
from litestar.di import NamedDependency
from litestar.params import SkipValidation
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_contracts.commands.worker_pools import Pools
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.ledger.records import CatalogEntry
from noetl_messaging.streams.ports import Backlogs, DeadLetters, Hints, Publisher
from noetl_planner.api.http.limiters import ClaimLimiter, FollowerLimiter, FollowerLimits
from noetl_planner.domain.decision.draft import Limits
from noetl_planner.identity.sign_in import SignIn
from noetl_planner.shards.caches import ProgramCache
from noetl_planner.shards.commit_feed import CommitFeed
from noetl_planner.shards.local_starts import LocalStarts
from noetl_planner.shards.render_processes import RenderProcesses
from noetl_planner.shards.store_waits import StoreWaits
from noetl_planner.shards.worker_presence import WorkerPresence
from noetl_storage.ports.history_ports import (
    HistoryPages,
    LedgerAudit,
    LineageHistories,
    ObjectRows,
    PastSnapshots,
)
from noetl_storage.ports.ledger_ports import (
    LedgerReader,
    Payloads,
    Projections,
    Requests,
    Snapshots,
    States,
)
from noetl_storage.ports.registry_ports import (
    Catalog,
    Credentials,
    DeadLetterLog,
    Schedules,
    Triggers,
    Webhooks,
)
from noetl_storage.ports.retention_ports import Holds

ENTRIES_MAX = 64


class PlaybookCache:
    """The last entries that were found, by path and by the version that was asked for."""

    def __init__(self) -> None:
        self._entries: OrderedDict[tuple[str, int | None], CatalogEntry] = OrderedDict()

    def find_entry(self, path: str, version: int | None) -> CatalogEntry | None:
        """Return an entry; where no version is named, what was the latest when it was looked up."""
        return self._entries.get((path, version))

    def keep_entry(self, version: int | None, entry: CatalogEntry) -> None:
        """Remember what was found for a version, or for none."""
        self._entries[entry.path, version] = entry
        while len(self._entries) > ENTRIES_MAX:
            self._entries.popitem(last=False)


# Where the application keeps what a request may touch.
SERVICES = "services"


class TenantScope(TypedDict):
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
    states: States
    payloads: Payloads
    hints: Hints
    worker_presence: WorkerPresence
    store_waits: StoreWaits
    commit_feed: CommitFeed = msgspec.field(default_factory=CommitFeed)
    playbook_cache: PlaybookCache = msgspec.field(default_factory=PlaybookCache)
    local_starts: LocalStarts = msgspec.field(default_factory=LocalStarts)
    claim_limiter: ClaimLimiter = msgspec.field(default_factory=ClaimLimiter)
    follower_limiter: FollowerLimiter = msgspec.field(default_factory=FollowerLimiter)
    render_processes: RenderProcesses = msgspec.field(default_factory=RenderProcesses)
    backlogs: Backlogs
    publisher: Publisher
    clock: Clock
    mint: Callable[[], str]
    sealer: CredentialSealer
    shard_count: int
    snapshots: Snapshots
    audit: LedgerAudit
    past_snapshots: PastSnapshots
    holds: Holds
    lineage: LineageHistories
    objects: ObjectRows
    pages: HistoryPages
    tenant_id: TenantId
    organization_id: OrganizationId
    list_problems: Callable[[], Awaitable[dict[str, str]]]
    stop: asyncio.Event
    follower_limits: FollowerLimits = FollowerLimits()
    # Names by which this API may be called besides those that are private by themselves.
    http_hosts: tuple[str, ...] = ()
    # None: no identity provider is named, so that nobody signs in by token or browser.
    sign_in: SignIn | None = None
    limits: Limits = Limits()
    programs: ProgramCache

    @property
    def tools(self) -> tuple[str, ...]:
        """Return the tool kinds that run here; none named: all that this release has."""
        return self.limits.tools

    @property
    def pools(self) -> Pools:
        """Return the pools of the deployment."""
        return self.limits.pools

    @property
    def tenant_scope(self) -> TenantScope:
        """Say whose things this API serves."""
        return TenantScope(tenant_id=self.tenant_id, organization_id=self.organization_id)


# Ports are protocols, which request validation could not look into.
Services = NamedDependency[SkipValidation[ApiServices]]
