"""Puts the planner together from ports: what `__main__` and the one-process run both use."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import msgspec
from msgspec import Struct

from noetl_chassis import computation_deadline
from noetl_chassis.clock import Clock
from noetl_chassis.health import Check
from noetl_chassis.identity import SnowflakeIds
from noetl_chassis.lifecycle import ServiceProcess
from noetl_chassis.loop import LoopHealth
from noetl_chassis.observability.connection_gauges import LEDGER, show_connection_peaks
from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_chassis.seals.payload_seal import read_payload_keys
from noetl_chassis.write_check import check_writes
from noetl_contracts import locators
from noetl_contracts.commands.placement import PLACE_KEYS
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.ledger import envelope
from noetl_contracts.ledger.records import ShardFence
from noetl_messaging.streams import topology
from noetl_messaging.streams.broker_durability import BrokerDurability
from noetl_messaging.streams.ports import Backlogs, Consumer, DeadLetters, Hints, Publisher
from noetl_planner.api import server
from noetl_planner.api.app import create_app
from noetl_planner.api.http.limiters import CallRateLimiter, FollowerLimits
from noetl_planner.api.http.quota_board import QuotaBoard
from noetl_planner.api.http.service_groups import (
    AdmissionLimits,
    HistoryStores,
    IdentityServices,
    MessageServices,
    PlaybookServices,
    RegistryStores,
    ShardServices,
)
from noetl_planner.api.http.services import ApiServices
from noetl_planner.api.pools.backlog_gauge import run_backlog_gauge
from noetl_planner.api.triggers.trigger_listener import TriggerListener
from noetl_planner.domain.decision.draft import Limits
from noetl_planner.domain.decision.spark_threshold import LaneCores
from noetl_planner.facts.report_refusals import ReportRefusals
from noetl_planner.facts.share_turns import ShareTurns
from noetl_planner.identity.access_resolver import AccessResolver
from noetl_planner.identity.authenticator import Authenticator, NobodyCanSignIn
from noetl_planner.identity.author_access import AuthorAccess
from noetl_planner.identity.denials import DenialLog
from noetl_planner.identity.openid import sign_in
from noetl_planner.identity.openid.browser_sessions import BrowserSessions, BrowserSessionsPort
from noetl_planner.identity.openid.sign_in import SignIn
from noetl_planner.identity.principals import build_system_access
from noetl_planner.identity.served_tenants import check_database
from noetl_planner.identity.start_checks import StartChecks
from noetl_planner.loops.collector import LoopCollector
from noetl_planner.loops.queue import LoopQueue
from noetl_planner.service import ShardPlanner
from noetl_planner.settings import (
    PREFIX,
    Settings,
    list_own_hosts,
    open_api_tls,
    parse_group_roles,
    parse_oidc,
    parse_pools,
    parse_served_tenants,
    parse_tenants,
)
from noetl_planner.shards import shard_leases
from noetl_planner.shards.caches import PayloadCache, ProgramCache, StateCache
from noetl_planner.shards.commit_feed import CommitFeed
from noetl_planner.shards.local_starts import LocalStarts
from noetl_planner.shards.message_publisher import MessagePublisher
from noetl_planner.shards.shard_context import ShardContext, TurnBounds
from noetl_planner.shards.shard_leases import ShardOwner
from noetl_planner.shards.store_waits import StoreWaits
from noetl_planner.shards.worker_presence import WorkerPresence
from noetl_playbook.templates import render_limits
from noetl_storage.payloads import master_keys
from noetl_storage.payloads.factory import find_store_tier, open_payloads
from noetl_storage.payloads.payload_store import PayloadStore
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
    Instances,
    LedgerReader,
    LedgerWriter,
    OutboxDrain,
    Payloads,
    Projections,
    Requests,
    ShardLeases,
    Snapshots,
    States,
)
from noetl_storage.ports.registry_ports import (
    Catalog,
    Credentials,
    DeadLetterLog,
    Notifications,
    Schedules,
    Sessions,
    Triggers,
    Webhooks,
)
from noetl_storage.ports.retention_ports import Holds
from noetl_storage.postgres.database import Database, open_database


class PlannerLedger(LedgerReader, LedgerWriter, Protocol):
    """The planner both reads and appends."""


class Adapters(Struct, frozen=True, kw_only=True):
    """Every port that the planner is handed; the API alone may read projections."""

    ledger: PlannerLedger
    requests: Requests
    outbox: OutboxDrain
    shards: ShardLeases
    instances: Instances
    projections: Projections
    snapshots: Snapshots
    audit: LedgerAudit
    past: PastSnapshots
    holds: Holds
    durability: DurabilitySettings
    lineage: LineageHistories
    objects: BusinessObjects
    pages: HistoryPages
    identities: Identities
    administration: AdministrationLog
    quotas: Quotas
    catalog: Catalog
    credentials: Credentials
    schedules: Schedules
    sessions: Sessions
    notifications: Notifications
    webhooks: Webhooks
    triggers: Triggers
    dead_letter_log: DeadLetterLog
    states: States
    payloads: Payloads
    publisher: Publisher
    consumer: Callable[..., Consumer]
    dead_letters: DeadLetters
    hints: Hints
    backlogs: Backlogs
    broker_settings: BrokerDurability
    clock: Clock
    snowflake: SnowflakeIds
    worker_presence: WorkerPresence
    store_waits: StoreWaits
    commit_feed: CommitFeed = msgspec.field(default_factory=CommitFeed)
    local_starts: LocalStarts = msgspec.field(default_factory=LocalStarts)


@asynccontextmanager
async def open_ledger(config: Settings, *, name: str) -> AsyncIterator[Database]:
    """Hold the connections to the ledger's database, and show how many are in use."""
    async with open_database(
        config.postgres_dsn,
        application_name=name,
        connections_max=config.pool_connections_max,
        connect_deadline_s=config.connect_s,
    ) as database:
        show_connection_peaks(database.peaks, database=LEDGER)
        yield database


async def register_planner(
    instances: Instances, process: ServiceProcess, clock: Clock, config: Settings
) -> SnowflakeIds:
    """Say that this planner runs, before its first shards; return the source of its identities."""
    node = await instances.register_instance(
        instance=process.instance, kind="planner", lease_s=2 * config.shard_lease_s
    )
    return SnowflakeIds(node=node, clock=clock)


def build_limits(config: Settings) -> Limits:
    """Read the deployment's bounds from the settings."""
    return Limits(
        activations_max=config.activations_max,
        items_max=config.items_max,
        cancel_grace_s=config.cancel_grace_s,
        command_lease_s=config.command_lease_s,
        command_heartbeat_s=config.command_heartbeat_s,
        in_flight_max=config.in_flight_max,
        step_attempts_max=config.step_attempts_max,
        offer_s=config.offer_s,
        ctx_bytes_max=config.ctx_bytes_max,
        spark_rows_min=config.spark_rows_min,
        cores=LaneCores(io=config.io_cores, spark=config.spark_cores),
        tools=config.tools,
        pools=parse_pools(config),
        tenants=parse_tenants(config),
        template_env=config.template_env,
    )


def name_producer(config: Settings, instance: str) -> str:
    """Build the producer of what a planner decides: its place, as far as that was set, and name."""
    place = TenantId(config.tenant_id), OrganizationId(config.organization_id)
    locality = {key: name for key in PLACE_KEYS if (name := getattr(config, key))}
    whole = locators.build_resource_locator(*place, "planner", instance, locality=locality)
    return envelope.shorten_producer(whole, *place)


def build_shard_context(adapters: Adapters, config: Settings, *, producer: str) -> ShardContext:
    """Build what all shards of one process use together."""
    limits = build_limits(config)
    share_turns = ShareTurns(limits.tenants, get_time=adapters.clock.monotonic_s)
    adapters.local_starts.share_turns = share_turns
    return ShardContext(
        ledger=adapters.ledger,
        states=adapters.states,
        payloads=adapters.payloads,
        programs=ProgramCache(adapters.catalog),
        payload_cache=PayloadCache(adapters.payloads, bytes_max=config.payload_cache_bytes),
        loop_queue=LoopQueue(LoopCollector(ledger=adapters.ledger, payloads=adapters.payloads)),
        message_publisher=MessagePublisher(
            publisher=adapters.publisher, outbox=adapters.outbox, hints=adapters.hints
        ),
        dead_letters=adapters.dead_letters,
        hints=adapters.hints,
        worker_presence=adapters.worker_presence,
        store_waits=adapters.store_waits,
        commit_feed=adapters.commit_feed,
        local_starts=adapters.local_starts,
        clock=adapters.clock,
        snowflake=adapters.snowflake,
        limits=limits,
        share_turns=share_turns,
        bounds=TurnBounds(
            messages_max=config.batch_messages_max,
            fetch_wait_s=config.fetch_wait_s,
            publish_lease_s=config.publish_lease_s,
            shard_count=config.shard_count,
        ),
        report_refusals=ReportRefusals(adapters.clock),
        start_checks=StartChecks(
            build_author_access(adapters, build_access_resolver(adapters, config))
        ),
        served_tenants=parse_served_tenants(config),
        producer=producer,
    )


def build_shard_planners(
    fence: ShardFence, adapters: Adapters, together: ShardContext, config: Settings
) -> list[ShardPlanner]:
    """Build the planners of one shard: of each tenant with its own share, and of all others.

    Each is registered as the starter of its new executions.
    """
    planners = []
    for share in (None, *sorted(together.limits.tenants)):
        tenant_id = None if share is None else TenantId(share)
        planner = ShardPlanner(
            fence=fence,
            consumer=adapters.consumer(
                name=topology.build_planner_consumer(fence.shard, tenant_id)
            ),
            states=StateCache(
                ledger=adapters.ledger, snapshots=adapters.snapshots, states_max=config.states_max
            ),
            shared=together,
            share=tenant_id,
        )
        together.local_starts.register_starter(fence.shard, planner, tenant_id)
        planners.append(planner)
    return planners


def build_api_services(
    adapters: Adapters,
    config: Settings,
    process: ServiceProcess,
    stop: asyncio.Event,
    signing_in: SignIn | None = None,
) -> ApiServices:
    """Choose what API handlers may use."""
    place = TenantId(config.tenant_id), OrganizationId(config.organization_id)
    resolver = build_access_resolver(adapters, config)
    return ApiServices(
        access=build_system_access(*place),
        tenant_id=place[0],
        organization_id=place[1],
        identity=IdentityServices(
            authenticator=build_authenticator(adapters, config, signing_in),
            access_resolver=resolver,
            authors=build_author_access(adapters, resolver),
            identities=adapters.identities,
            administration=adapters.administration,
            quotas=adapters.quotas,
            served_tenants=parse_served_tenants(config),
            sign_in=signing_in,
        ),
        history=_group_history(adapters),
        playbooks=PlaybookServices(
            catalog=adapters.catalog, programs=ProgramCache(adapters.catalog)
        ),
        registry=_group_registry(adapters, config),
        messages=MessageServices(
            requests=adapters.requests,
            outbox_backlog=adapters.outbox,
            publisher=adapters.publisher,
            hints=adapters.hints,
            backlogs=adapters.backlogs,
            broker_settings=adapters.broker_settings,
            dead_letters=adapters.dead_letters,
            dead_letter_log=adapters.dead_letter_log,
        ),
        shards=ShardServices(
            shard_count=config.shard_count,
            worker_presence=adapters.worker_presence,
            store_waits=adapters.store_waits,
            commit_feed=adapters.commit_feed,
            local_starts=adapters.local_starts,
        ),
        admission=AdmissionLimits(
            quota_board=QuotaBoard(adapters.quotas),
            rate_limiter=CallRateLimiter(config.calls_per_s),
            follower_limits=FollowerLimits(
                all=config.streams_max,
                client=config.streams_client_max,
                execution=config.streams_execution_max,
            ),
        ),
        payloads=adapters.payloads,
        store_tier=find_store_tier(config.payload_url),
        clock=adapters.clock,
        mint=adapters.snowflake.next_id,
        list_problems=process.health.list_problems,
        stop=stop,
        http_hosts=list_own_hosts(config),
        limits=build_limits(config),
    )


def _group_history(adapters: Adapters) -> HistoryStores:
    return HistoryStores(
        ledger=adapters.ledger,
        audit=adapters.audit,
        snapshots=adapters.snapshots,
        past_snapshots=adapters.past,
        projections=adapters.projections,
        pages=adapters.pages,
        objects=adapters.objects,
        lineage=adapters.lineage,
        holds=adapters.holds,
        durability=adapters.durability,
    )


def _group_registry(adapters: Adapters, config: Settings) -> RegistryStores:
    return RegistryStores(
        credentials=adapters.credentials,
        sealer=CredentialSealer(config.secret_key),
        states=adapters.states,
        schedules=adapters.schedules,
        notifications=adapters.notifications,
        webhooks=adapters.webhooks,
        triggers=adapters.triggers,
    )


def build_access_resolver(adapters: Adapters, config: Settings) -> AccessResolver:
    """Build what reads roles, of bindings and of the settings."""
    return AccessResolver(
        adapters.identities,
        tenant_id=TenantId(config.tenant_id),
        organization_id=OrganizationId(config.organization_id),
        role_by_group=parse_group_roles(config),
        group_issuer=config.oidc_issuer,
    )


def build_author_access(adapters: Adapters, resolver: AccessResolver) -> AuthorAccess:
    """Build what looks up the roles of who has left something running."""
    return AuthorAccess(
        adapters.identities,
        resolver,
        adapters.clock,
        denials=DenialLog(adapters.administration, adapters.clock),
    )


def build_authenticator(
    adapters: Adapters, config: Settings, signing_in: SignIn | None
) -> Authenticator:
    """Build what proves who asks, from the means that the settings name."""
    return Authenticator(
        adapters.identities,
        adapters.clock,
        owner_digest=config.owner_token_sha256,
        owner_name=config.owner_name,
        is_off=config.auth != "on",
        sign_in=signing_in,
        browsers=None if signing_in is not None else build_browser_sessions_port(adapters, config),
    )


def build_browser_sessions_port(adapters: Adapters, config: Settings) -> BrowserSessionsPort:
    """Build the sessions of browsers where no provider signs people in."""
    return BrowserSessionsPort(
        sessions=BrowserSessions(adapters.sessions, adapters.clock),
        is_secure=bool(config.tls_certificate_file) or config.public_url.startswith("https:"),
    )


async def check_sign_in(adapters: Adapters, config: Settings) -> None:
    """Refuse to serve where nobody could sign in; raises `NobodyCanSignIn` with the ways out."""
    has_means = config.owner_token_sha256 or config.oidc_issuer
    if config.auth != "on" or has_means or await adapters.identities.has_any_key():
        return
    raise NobodyCanSignIn(
        "nobody could sign in: there is no owner's token, no identity provider and no API key. "
        f"Set {PREFIX}OWNER_TOKEN_SHA256 to the SHA-256 of a token (noetl key owner makes one), "
        "or NOETL_AUTH=off-on-loopback to go on without authentication on a loopback address"
    )


def build_trigger_listener(adapters: Adapters, services: ApiServices) -> TriggerListener:
    """Build what turns messages into executions."""
    consumer = adapters.consumer(stream=topology.TRIGGERS, name=topology.TRIGGER_CONSUMER)
    return TriggerListener(services, consumer=consumer, dead_letters=adapters.dead_letters)


def open_payload_store(config: Settings) -> AbstractAsyncContextManager[PayloadStore]:
    """Open the payload store that the settings name."""
    return open_payloads(
        config.payload_url,
        access_key=config.payload_access_key or None,
        secret_key=config.payload_secret_key or None,
        connect_s=config.connect_s,
        seals=read_payload_keys(
            config.payload_seal_key,
            file=config.payload_seal_file,
            managed=master_keys.open_managed_keys,
        ),
    )


def watch_servers(
    process: ServiceProcess, check_bus: Check, payloads: PayloadStore
) -> AbstractAsyncContextManager[None]:
    """Count NATS and the payload store in for readiness while the block runs."""
    process.health.add_check("nats", check_bus)
    return check_writes(payloads.check_write, name="store", process=process)


async def run_planner(adapters: Adapters, config: Settings, process: ServiceProcess) -> None:
    """Run the planner and its HTTP API until `stop` is set; once it listens, `api` has started."""
    together = build_shard_context(
        adapters, config, producer=name_producer(config, process.instance)
    )
    await check_database(parse_served_tenants(config), adapters.identities)
    await check_sign_in(adapters, config)
    loop_health = LoopHealth("shards", stale_s=config.shard_lease_s * 3)
    process.health.add_check("shards", loop_health.check_health)
    owner = ShardOwner(
        leases=adapters.shards,
        instances=adapters.instances,
        owner=process.instance,
        lease_s=config.shard_lease_s,
        shard_count=config.shard_count,
        open_shard=lambda fence: build_shard_planners(fence, adapters, together, config),
    )

    async def serve_api(stop: asyncio.Event) -> None:
        async with (
            sign_in.open_sign_in(
                parse_oidc(config),
                secret_key=config.secret_key,
                sessions=adapters.sessions,
                clock=adapters.clock,
            ) as signing_in,
            asyncio.TaskGroup() as tasks,
        ):
            services = build_api_services(adapters, config, process, stop, signing_in)
            serving = server.serve_api(
                create_app(services),
                host=config.http_host,
                port=config.http_port,
                stop=stop,
                started=lambda _port: process.health.note_start("api"),
                tls=open_api_tls(config),
            )
            tasks.create_task(serving)
            tasks.create_task(build_trigger_listener(adapters, services).run_until_stopped(stop))
            tasks.create_task(run_backlog_gauge(services, stop))
            listeners = [
                tasks.create_task(adapters.worker_presence.listen_to_workers(adapters.hints)),
                tasks.create_task(adapters.store_waits.listen_to_planners(adapters.hints)),
            ]
            await stop.wait()
            adapters.commit_feed.wake_followers()
            for listener in listeners:
                listener.cancel()

    with computation_deadline.own_deadline_timer() as guard, render_limits.install_guard(guard):
        await shard_leases.run_shards(
            owner=owner,
            publishing=together.message_publisher,
            gathering=together.loop_queue,
            serve_requests=serve_api,
            renewal_s=config.shard_renewal_s,
            loop_health=loop_health,
            stop=process.stop,
        )
