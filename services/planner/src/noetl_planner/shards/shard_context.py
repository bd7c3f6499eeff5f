"""What all shards of one process use together."""

import msgspec
from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_chassis.identity import SnowflakeIds
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_messaging.streams.ports import DeadLetters, Hints
from noetl_planner.domain.decision.draft import Limits
from noetl_planner.facts.report_refusals import ReportRefusals
from noetl_planner.facts.share_turns import ShareTurns
from noetl_planner.identity.served_tenants import ServedTenants
from noetl_planner.identity.start_checks import StartChecks
from noetl_planner.loops.queue import LoopQueue
from noetl_planner.shards.caches import PayloadCache, ProgramCache
from noetl_planner.shards.commit_feed import CommitFeed
from noetl_planner.shards.local_starts import LocalStarts
from noetl_planner.shards.message_publisher import MessagePublisher
from noetl_planner.shards.render_processes import RenderProcesses
from noetl_planner.shards.store_waits import StoreWaits
from noetl_planner.shards.worker_presence import WorkerPresence
from noetl_storage.ports.ledger_ports import LedgerWriter, Payloads, States


class TurnBounds(Struct, frozen=True, kw_only=True):
    """How much one turn takes on, and for how long."""

    messages_max: int
    fetch_wait_s: float
    publish_lease_s: float
    shard_count: int


class ShardContext(Struct, frozen=True, kw_only=True):
    """What all shards of one process use together."""

    ledger: LedgerWriter
    states: States
    payloads: Payloads
    programs: ProgramCache
    payload_cache: PayloadCache
    loop_queue: LoopQueue
    message_publisher: MessagePublisher
    dead_letters: DeadLetters
    hints: Hints
    worker_presence: WorkerPresence
    store_waits: StoreWaits
    commit_feed: CommitFeed
    local_starts: LocalStarts
    clock: Clock
    snowflake: SnowflakeIds
    limits: Limits
    bounds: TurnBounds
    producer: str
    share_turns: ShareTurns
    report_refusals: ReportRefusals
    start_checks: StartChecks
    served_tenants: ServedTenants = ServedTenants()
    render_processes: RenderProcesses = msgspec.field(default_factory=RenderProcesses)

    @property
    def routes(self) -> IngestRoutes:
        """Return where facts about executions are published."""
        return IngestRoutes(shard_count=self.bounds.shard_count, tenants=self.limits.tenants)
