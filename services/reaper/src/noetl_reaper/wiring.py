"""The reaper's adapters, chosen."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial

from noetl_chassis.clock import SystemClock
from noetl_chassis.lifecycle import ServiceProcess
from noetl_chassis.loop import run_every
from noetl_chassis.seals.payload_keys import read_payload_seals
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_messaging.jetstream.connection import Connection
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.jetstream.hints import NatsHints
from noetl_messaging.jetstream.open_connections import NatsConnections
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.jetstream.unsettled_messages import JetStreamUnsettledMessages
from noetl_messaging.streams import topology
from noetl_messaging.streams.topology import Topology
from noetl_reaper import domain, settings
from noetl_reaper.service import Reaper, ReaperTables
from noetl_reaper.settings import Settings
from noetl_reaper.sweeps.backlog_detail import BacklogDetail
from noetl_reaper.sweeps.history_retention import HistoryRetention
from noetl_reaper.sweeps.node_lease import NodeLease
from noetl_reaper.sweeps.notifier import Notifier, NotifierLimits
from noetl_reaper.sweeps.payload_collection import PayloadCollection
from noetl_reaper.sweeps.scheduler import Scheduler, SchedulerLimits
from noetl_reaper.sweeps.storage_count import StorageCount
from noetl_reaper.sweeps.tenant_reads import TenantReadLimit
from noetl_reaper.sweeps.worker_losses import WorkerLossPolicy, WorkerLossWatch
from noetl_replay.fold import FOLD_VERSION
from noetl_storage.archive.archivist import ROLE, Archivist, RetentionTerms
from noetl_storage.payloads import master_keys
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.payloads.garbage import GarbageAge, GarbageCollector
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.ports.ledger_ports import Payloads
from noetl_storage.ports.payload_ports import PayloadShelf
from noetl_storage.postgres.database import Database, open_database
from noetl_storage.postgres.ledger.audit import PostgresLedgerAudit
from noetl_storage.postgres.ledger.instances import PostgresInstances
from noetl_storage.postgres.ledger.ledger import PostgresLedger
from noetl_storage.postgres.ledger.payload_references import PostgresPayloadReferences
from noetl_storage.postgres.ledger.requests import PostgresRequests
from noetl_storage.postgres.ledger.retention import PostgresRetention
from noetl_storage.postgres.partitions import PostgresPartitions
from noetl_storage.postgres.read_models.projections import PostgresProjections
from noetl_storage.postgres.registry.identities import PostgresQuotas
from noetl_storage.postgres.registry.notifications import PostgresNotifications
from noetl_storage.postgres.registry.schedules import PostgresSchedules
from noetl_storage.postgres.tenant_roles import PostgresTenantRoles

# Collecting may take its time; the store's other readers may not wait for it.
_PAYLOAD_THREADS = 4
# Counting a whole partition before it goes takes a while.
_RETENTION_STATEMENT_S = 600.0


def wire_reaper(config: Settings, *, owner: str, database: Database, nats: Connection) -> Reaper:
    """Hand the reaper its adapters."""
    clock = SystemClock()
    declared = _declare_topology(config)
    reaper = Reaper(
        tables=ReaperTables(
            instances=PostgresInstances(database),
            requests=PostgresRequests(database),
            projections=PostgresProjections(database),
            ledger=PostgresLedger(database),
            partitions=PostgresPartitions(database),
        ),
        streams=JetStreamStreams(nats, declared, now=clock.now, replicas=config.replicas),
        letters=JetStreamDeadLetters(nats),
        hints=NatsHints(nats),
        clock=clock,
        owner=owner,
        policy=settings.build_policy(config),
        bounds=settings.build_bounds(config),
    )
    numbers = NodeLease(
        PostgresInstances(database), owner=owner, lease_s=config.node_lease_s, clock=clock
    )
    reaper.add_duty(_build_scheduler(config, numbers, database=database, nats=nats).fire_due)
    reaper.add_duty(_build_notifier(config, numbers, database=database, nats=nats).send_due)
    limit = TenantReadLimit(PostgresTenantRoles(database), longest_s=config.tenant_read_s)
    reaper.add_duty(limit.end_long_reads)
    detail = BacklogDetail(
        PostgresProjections(database),
        tenant_id=TenantId(config.tenant_id),
        organization_id=OrganizationId(config.organization_id),
        clock=clock,
    )
    reaper.add_duty(detail.measure_backlog)
    return reaper


@asynccontextmanager
async def watch_workers(
    config: Settings,
    reaper: Reaper,
    *,
    process: ServiceProcess,
    database: Database,
    nats: Connection,
) -> AsyncIterator[None]:
    """Look for killed workers beside the sweep; not at all without a grace."""
    if not config.worker_grace_s:
        yield
        return
    watch = WorkerLossWatch(
        connections=NatsConnections(nats),
        messages=JetStreamUnsettledMessages(
            nats, stream=topology.COMMANDS, consumers=_declare_topology(config).consumers
        ),
        requests=PostgresRequests(database),
        hints=NatsHints(nats),
        clock=SystemClock(),
        policy=WorkerLossPolicy(
            grace_s=config.worker_grace_s,
            lease_s=config.lease_s,
            build_request=partial(
                domain.build_worker_lost_request, policy=settings.build_policy(config)
            ),
        ),
        is_leading=lambda: reaper.is_leading,
    )
    async with asyncio.TaskGroup() as group:
        group.create_task(watch.watch_workers(process.stop))
        yield


def _open_payload_store(config: Settings) -> AbstractAsyncContextManager[PayloadStore]:
    return open_payloads(
        config.payload_url,
        access_key=config.payload_access_key or None,
        secret_key=config.payload_secret_key or None,
        connect_s=config.connect_s,
        threads_max=_PAYLOAD_THREADS,
        seals=read_payload_seals(
            config.payload_seal_key,
            file=config.payload_seal_file,
            managed=master_keys.open_managed_keys,
        ),
    )


@asynccontextmanager
async def collect_payloads(
    config: Settings, *, process: ServiceProcess, database: Database
) -> AsyncIterator[None]:
    """Collect payloads beside the sweep, in its own time; not at all without a time to live."""
    if not config.payload_ttl_s:
        yield
        return
    async with _open_payload_store(config) as payloads, asyncio.TaskGroup() as group:
        collector = _build_collection(config, payloads, owner=process.instance, database=database)
        group.create_task(
            run_every(
                config.payload_sweep_interval_s,
                collector.sweep,
                stop=process.stop,
                name="payloads",
            )
        )
        yield


@asynccontextmanager
async def count_storage(
    config: Settings, *, process: ServiceProcess, database: Database
) -> AsyncIterator[None]:
    """Count what tenants store beside the sweep; not at all without a store or an interval."""
    if not (config.payload_url and config.storage_count_interval_s):
        yield
        return
    async with _open_payload_store(config) as payloads, asyncio.TaskGroup() as group:
        count = StorageCount(
            payloads,
            counts=PostgresQuotas(database),
            instances=PostgresInstances(database),
            owner=process.instance,
            lease_s=config.storage_count_interval_s,
            clock=SystemClock(),
        )
        group.create_task(
            run_every(
                config.storage_count_interval_s,
                count.count_tenants,
                stop=process.stop,
                name="storage count",
            )
        )
        yield


@asynccontextmanager
async def retain_histories(config: Settings, *, process: ServiceProcess) -> AsyncIterator[None]:
    """Let histories leave beside the sweep; not at all without an address and an interval."""
    if not (config.retention_dsn and config.retention_sweep_interval_s):
        yield
        return
    database = open_database(
        config.retention_dsn,
        application_name=f"{process.instance}/retention",
        connections_max=1,
        connect_deadline_s=config.connect_s,
        statement_timeout_s=_RETENTION_STATEMENT_S,
    )
    async with (
        _open_payload_store(config) as payloads,
        database as archive,
        asyncio.TaskGroup() as group,
    ):
        sweep = _build_retention(config, payloads, owner=process.instance, database=archive).sweep
        interval_s = config.retention_sweep_interval_s
        group.create_task(run_every(interval_s, sweep, stop=process.stop, name="retention"))
        yield


def _build_retention(
    config: Settings, payloads: Payloads, *, owner: str, database: Database
) -> HistoryRetention:
    archivist = Archivist(
        retention=PostgresRetention(database),
        audit=PostgresLedgerAudit(database),
        store=payloads,
        terms=RetentionTerms(
            keep_days=config.retention_keep_days,
            action=config.retention_action,
            can_delete=config.retention_can_delete,
        ),
        fold_version=FOLD_VERSION,
        who=owner,
    )
    return HistoryRetention(
        archivist,
        instances=PostgresInstances(database),
        role=ROLE,
        owner=owner,
        lease_s=_RETENTION_STATEMENT_S,
    )


def _build_collection(
    config: Settings, payloads: PayloadShelf, *, owner: str, database: Database
) -> PayloadCollection:
    references = PostgresPayloadReferences(database)
    garbage_age = GarbageAge(
        ttl=timedelta(seconds=config.payload_ttl_s), shelf=timedelta(seconds=config.payload_shelf_s)
    )
    return PayloadCollection(
        GarbageCollector(shelf=payloads, references=references, garbage_age=garbage_age),
        references=references,
        instances=PostgresInstances(database),
        owner=owner,
        lease_s=config.payload_sweep_interval_s,
        clock=SystemClock(),
    )


def _declare_topology(config: Settings) -> Topology:
    return topology.declare_topology(
        shard_count=config.shard_count,
        projector_count=config.projector_count,
        pools=config.pools,
        tenants=sorted(settings.parse_tenants(config)),
        lease_s=config.lease_s,
    )


def _build_scheduler(
    config: Settings, numbers: NodeLease, *, database: Database, nats: Connection
) -> Scheduler:
    return Scheduler(
        schedules=PostgresSchedules(database),
        projections=PostgresProjections(database),
        hints=NatsHints(nats),
        clock=SystemClock(),
        numbers=numbers,
        limits=SchedulerLimits(
            schedules_max=config.schedules_max, routes=settings.build_routes(config)
        ),
    )


def _build_notifier(
    config: Settings, numbers: NodeLease, *, database: Database, nats: Connection
) -> Notifier:
    return Notifier(
        notifications=PostgresNotifications(database),
        hints=NatsHints(nats),
        clock=SystemClock(),
        numbers=numbers,
        limits=NotifierLimits(
            lookback_s=config.notification_lookback_s,
            notifications_max=config.notifications_max,
            console_url=config.public_url,
            routes=settings.build_routes(config),
        ),
    )
