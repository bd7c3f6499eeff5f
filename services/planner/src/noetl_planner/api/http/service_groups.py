"""What API handlers use, in groups by noun: stores, caches and limits."""

from typing import Any

import msgspec
from msgspec import Struct

from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.ledger.records import CatalogEntry
from noetl_contracts.lru_cache import LruCache
from noetl_messaging.streams.broker_durability import BrokerDurability
from noetl_messaging.streams.ports import Backlogs, DeadLetters, Hints, Publisher
from noetl_planner.api.http.limiters import (
    CallRateLimiter,
    ClaimLimiter,
    FollowerLimiter,
    FollowerLimits,
)
from noetl_planner.api.http.quota_board import QuotaBoard
from noetl_planner.identity.access_resolver import AccessResolver
from noetl_planner.identity.authenticator import Authenticator
from noetl_planner.identity.author_access import AuthorAccess
from noetl_planner.identity.openid.sign_in import SignIn
from noetl_planner.identity.served_tenants import ServedTenants
from noetl_planner.moments.moment_folds import MomentFolds
from noetl_planner.moments.replay_folds import ReplayFolds
from noetl_planner.moments.shared_moments import SharedMoments
from noetl_planner.moments.watched_runs import WatchedRuns
from noetl_planner.shards.caches import ProgramCache
from noetl_planner.shards.commit_feed import CommitFeed
from noetl_planner.shards.local_starts import LocalStarts
from noetl_planner.shards.render_processes import RenderProcesses
from noetl_planner.shards.store_waits import StoreWaits
from noetl_planner.shards.worker_presence import WorkerPresence
from noetl_storage.ports.durability_ports import DurabilitySettings
from noetl_storage.ports.history_ports import (
    BusinessObjects,
    HistoryPages,
    LedgerAudit,
    LineageHistories,
    PastSnapshots,
)
from noetl_storage.ports.identity_ports import AdministrationLog, Identities, Quotas
from noetl_storage.ports.ledger_ports import (
    LedgerReader,
    OutboxBacklog,
    Projections,
    Requests,
    Snapshots,
    States,
)
from noetl_storage.ports.registry_ports import (
    Catalog,
    Credentials,
    DeadLetterLog,
    Notifications,
    Schedules,
    Triggers,
    Webhooks,
)
from noetl_storage.ports.retention_ports import Holds

ENTRIES_MAX = 64


class PlaybookCache:
    """The last entries that were found, by owner, path and the version that was asked for."""

    def __init__(self) -> None:
        self._entries = LruCache[tuple[str, str, str, int | None], CatalogEntry](
            entries_max=ENTRIES_MAX
        )

    def find_entry(
        self,
        path: str,
        version: int | None,
        *,
        tenant_id: TenantId,
        organization_id: OrganizationId,
    ) -> CatalogEntry | None:
        """Return an entry; where no version is named, what was the latest when it was looked up."""
        return self._entries.find_value((tenant_id, organization_id, path, version))

    def keep_entry(self, version: int | None, entry: CatalogEntry) -> None:
        """Remember what was found for a version, or for none."""
        key = (entry.tenant_id, entry.organization_id, entry.path, version)
        self._entries.keep_value(key, entry)


class IdentityServices(Struct, frozen=True, kw_only=True):
    """Who calls, what they may do, and the record of what they changed."""

    authenticator: Authenticator
    access_resolver: AccessResolver
    authors: AuthorAccess
    identities: Identities
    administration: AdministrationLog
    quotas: Quotas
    served_tenants: ServedTenants = ServedTenants()
    # None: no identity provider is named, so that nobody signs in by token or browser.
    sign_in: SignIn | None = None


class HistoryStores(Struct, frozen=True, kw_only=True):
    """Executions: their events, their snapshots, and the pages that projectors write of them."""

    ledger: LedgerReader
    audit: LedgerAudit
    snapshots: Snapshots
    past_snapshots: PastSnapshots
    projections: Projections
    pages: HistoryPages
    objects: BusinessObjects
    lineage: LineageHistories
    holds: Holds
    durability: DurabilitySettings
    moment_folds: MomentFolds = msgspec.field(default_factory=MomentFolds)
    replay_folds: ReplayFolds = msgspec.field(default_factory=ReplayFolds)
    shared_moments: SharedMoments[Any] = msgspec.field(default_factory=SharedMoments)
    watched_runs: WatchedRuns = msgspec.field(default_factory=WatchedRuns)


class PlaybookServices(Struct, frozen=True, kw_only=True):
    """Registered playbooks, as text and as programs, and the processes that render templates."""

    catalog: Catalog
    programs: ProgramCache
    playbook_cache: PlaybookCache = msgspec.field(default_factory=PlaybookCache)
    render_processes: RenderProcesses = msgspec.field(default_factory=RenderProcesses)


class RegistryStores(Struct, frozen=True, kw_only=True):
    """What an organization has put: credentials, values of `state`, and what starts executions."""

    credentials: Credentials
    sealer: CredentialSealer
    states: States
    schedules: Schedules
    notifications: Notifications
    webhooks: Webhooks
    triggers: Triggers


class MessageServices(Struct, frozen=True, kw_only=True):
    """Requests to planners, messages to and from the broker, and dead letters."""

    requests: Requests
    outbox_backlog: OutboxBacklog
    publisher: Publisher
    hints: Hints
    backlogs: Backlogs
    broker_settings: BrokerDurability
    dead_letters: DeadLetters
    dead_letter_log: DeadLetterLog


class ShardServices(Struct, frozen=True, kw_only=True):
    """What the API reads from the shards of its process, and of others by hints."""

    shard_count: int
    worker_presence: WorkerPresence
    store_waits: StoreWaits
    commit_feed: CommitFeed = msgspec.field(default_factory=CommitFeed)
    local_starts: LocalStarts = msgspec.field(default_factory=LocalStarts)


class AdmissionLimits(Struct, frozen=True, kw_only=True):
    """How many calls, executions, claims and live streams are let in."""

    quota_board: QuotaBoard
    rate_limiter: CallRateLimiter = msgspec.field(default_factory=CallRateLimiter)
    claim_limiter: ClaimLimiter = msgspec.field(default_factory=ClaimLimiter)
    follower_limiter: FollowerLimiter = msgspec.field(default_factory=FollowerLimiter)
    follower_limits: FollowerLimits = FollowerLimits()
