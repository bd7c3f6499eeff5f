"""Puts the planner together from ports: what `__main__` and the one-process run both use."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import msgspec
from msgspec import Struct

from noetl_chassis import deadline
from noetl_chassis.clock import Clock
from noetl_chassis.identity import Snowflake
from noetl_chassis.lifecycle import Process
from noetl_chassis.loop import Pulse
from noetl_chassis.payload_sealing import read_keys
from noetl_chassis.sealing import Sealer
from noetl_contracts import envelope_fields, locators
from noetl_contracts.ids import OrganizationId, TenantId
from noetl_contracts.ledger import ShardFence
from noetl_contracts.placement import PLACE_KEYS
from noetl_messaging import topology
from noetl_messaging.ports import Backlogs, Consumer, DeadLetters, Hints, Publisher
from noetl_planner.domain.crossover import Cores
from noetl_planner.domain.draft import Limits
from noetl_planner.http import server
from noetl_planner.http.app import create_app
from noetl_planner.http.seats import SeatLimits
from noetl_planner.http.services import ApiServices
from noetl_planner.http.triggering import Listener
from noetl_planner.service import ShardPlanner
from noetl_planner.settings import Settings, pools_of, tenants_of
from noetl_planner.shell import running
from noetl_planner.shell.board import Board
from noetl_planner.shell.collecting import Collector
from noetl_planner.shell.crowd import Crowd
from noetl_planner.shell.desk import Desk
from noetl_planner.shell.gathering import Gathering
from noetl_planner.shell.publishing import Publishing
from noetl_planner.shell.shards import ShardOwner
from noetl_planner.shell.sharing import Bounds, Shared
from noetl_planner.shell.states import LoadedPayloads, Programs, States
from noetl_playbook.templates import rendering
from noetl_storage.audit_ports import LedgerAudit, Past
from noetl_storage.dead_letter_ports import DeadLetterLog
from noetl_storage.lineage_ports import LineageHistories
from noetl_storage.object_ports import ObjectRows
from noetl_storage.page_ports import HistoryPages
from noetl_storage.payloads import managed
from noetl_storage.payloads.open import open_payloads
from noetl_storage.ports import (
    Instances,
    LedgerReader,
    LedgerWriter,
    OutboxDrain,
    Payloads,
    Projections,
    Requests,
    ShardLeases,
    Snapshots,
)
from noetl_storage.postgres.database import Database, open_database
from noetl_storage.registry_ports import Catalog, Credentials
from noetl_storage.retention_ports import Holds
from noetl_storage.trigger_ports import Schedules, Triggers, Webhooks


class Ledger(LedgerReader, LedgerWriter, Protocol):
    """The planner both reads and appends."""


class Adapters(Struct, frozen=True, kw_only=True):
    """Every port that the planner is handed; the API alone may read projections."""

    ledger: Ledger
    requests: Requests
    outbox: OutboxDrain
    shards: ShardLeases
    instances: Instances
    projections: Projections
    snapshots: Snapshots
    audit: LedgerAudit
    past: Past
    holds: Holds
    lineage: LineageHistories
    objects: ObjectRows
    pages: HistoryPages
    catalog: Catalog
    credentials: Credentials
    schedules: Schedules
    webhooks: Webhooks
    triggers: Triggers
    dead_letter_log: DeadLetterLog
    payloads: Payloads
    publisher: Publisher
    consumer: Callable[..., Consumer]
    dead_letters: DeadLetters
    hints: Hints
    backlogs: Backlogs
    clock: Clock
    snowflake: Snowflake
    crowd: Crowd
    board: Board = msgspec.field(default_factory=Board)
    desk: Desk = msgspec.field(default_factory=Desk)


def open_ledger(config: Settings, *, name: str) -> AbstractAsyncContextManager[Database]:
    """Hold the connections to the ledger's database."""
    return open_database(
        config.postgres_dsn,
        application_name=name,
        connections_max=config.pool_connections_max,
        connect_deadline_s=config.connect_s,
    )


def limits(config: Settings) -> Limits:
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
        cores=Cores(io=config.io_cores, spark=config.spark_cores),
        tools=config.tools,
        pools=pools_of(config),
        tenants=tenants_of(config),
        template_env=config.template_env,
    )


def name_producer(config: Settings, instance: str) -> str:
    """Build the producer of what a planner decides: its place, as far as that was set, and name."""
    place = TenantId(config.tenant_id), OrganizationId(config.organization_id)
    locality = {key: name for key in PLACE_KEYS if (name := getattr(config, key))}
    whole = locators.resource(*place, "planner", instance, locality=locality)
    return envelope_fields.shorten_producer(whole, *place)


def shared(adapters: Adapters, config: Settings, *, producer: str) -> Shared:
    """Build what all shards of one process use together."""
    return Shared(
        ledger=adapters.ledger,
        payloads=adapters.payloads,
        programs=Programs(adapters.catalog),
        loaded=LoadedPayloads(adapters.payloads, bytes_max=config.payload_cache_bytes),
        gathering=Gathering(Collector(ledger=adapters.ledger, payloads=adapters.payloads)),
        publishing=Publishing(
            publisher=adapters.publisher, outbox=adapters.outbox, hints=adapters.hints
        ),
        dead_letters=adapters.dead_letters,
        hints=adapters.hints,
        crowd=adapters.crowd,
        board=adapters.board,
        desk=adapters.desk,
        clock=adapters.clock,
        snowflake=adapters.snowflake,
        limits=limits(config),
        bounds=Bounds(
            messages_max=config.batch_messages_max,
            fetch_wait_s=config.fetch_wait_s,
            publish_lease_s=config.publish_lease_s,
            shard_count=config.shard_count,
        ),
        producer=producer,
    )


def shard_planner(
    fence: ShardFence, adapters: Adapters, together: Shared, config: Settings
) -> ShardPlanner:
    """Build the planner of one shard, and let the doors hand new executions to it."""
    planner = ShardPlanner(
        fence=fence,
        consumer=adapters.consumer(name=topology.planner_consumer(fence.shard)),
        states=States(
            ledger=adapters.ledger, snapshots=adapters.snapshots, states_max=config.states_max
        ),
        shared=together,
    )
    together.desk.seat(fence.shard, planner)
    return planner


def api_services(
    adapters: Adapters, config: Settings, process: Process, stop: asyncio.Event
) -> ApiServices:
    """Choose what the HTTP rooms may touch."""
    return ApiServices(
        requests=adapters.requests,
        projections=adapters.projections,
        ledger=adapters.ledger,
        catalog=adapters.catalog,
        credentials=adapters.credentials,
        schedules=adapters.schedules,
        webhooks=adapters.webhooks,
        triggers=adapters.triggers,
        dead_letters=adapters.dead_letters,
        dead_letter_log=adapters.dead_letter_log,
        holds=adapters.holds,
        payloads=adapters.payloads,
        hints=adapters.hints,
        crowd=adapters.crowd,
        board=adapters.board,
        desk=adapters.desk,
        backlogs=adapters.backlogs,
        publisher=adapters.publisher,
        clock=adapters.clock,
        mint=adapters.snowflake.next_id,
        sealer=Sealer(config.secret_key),
        shard_count=config.shard_count,
        snapshots=adapters.snapshots,
        audit=adapters.audit,
        past=adapters.past,
        lineage=adapters.lineage,
        objects=adapters.objects,
        pages=adapters.pages,
        limits=limits(config),
        programs=Programs(adapters.catalog),
        tenant_id=TenantId(config.tenant_id),
        organization_id=OrganizationId(config.organization_id),
        list_problems=process.health.list_problems,
        stop=stop,
        seat_limits=SeatLimits(
            all=config.streams_max,
            client=config.streams_client_max,
            execution=config.streams_execution_max,
        ),
        http_hosts=tuple(name.lower() for name in config.http_hosts),
    )


def listener(adapters: Adapters, services: ApiServices) -> Listener:
    """Build what turns messages into executions."""
    consumer = adapters.consumer(stream=topology.TRIGGERS, name=topology.TRIGGER_CONSUMER)
    return Listener(services, consumer=consumer, dead_letters=adapters.dead_letters)


def open_store(config: Settings) -> AbstractAsyncContextManager[Payloads]:
    """Open the payload store that the settings name."""
    return open_payloads(
        config.payload_url,
        access_key=config.payload_access_key or None,
        secret_key=config.payload_secret_key or None,
        connect_s=config.connect_s,
        seals=read_keys(
            config.payload_seal_key, file=config.payload_seal_file, managed=managed.open_keys
        ),
    )


async def run(adapters: Adapters, config: Settings, process: Process) -> None:
    """Run the planner and its HTTP doors until told to stop."""
    together = shared(adapters, config, producer=name_producer(config, process.instance))
    pulse = Pulse("shards", stale_s=config.shard_lease_s * 3)
    process.health.add("shards", pulse.check)
    owner = ShardOwner(
        leases=adapters.shards,
        instances=adapters.instances,
        owner=process.instance,
        lease_s=config.shard_lease_s,
        shard_count=config.shard_count,
        open_shard=lambda fence: shard_planner(fence, adapters, together, config),
    )

    async def open_doors(stop: asyncio.Event) -> None:
        services = api_services(adapters, config, process, stop)
        serving = server.serve(
            create_app(services), host=config.http_host, port=config.http_port, stop=stop
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(serving)
            tasks.create_task(listener(adapters, services).run(stop))
            hearing = tasks.create_task(adapters.crowd.listen(adapters.hints))
            await stop.wait()
            adapters.board.wake()
            hearing.cancel()

    with deadline.watching() as guard, rendering.guarded_by(guard):
        await running.run(
            owner=owner,
            publishing=together.publishing,
            gathering=together.gathering,
            doors=open_doors,
            renewal_s=config.shard_renewal_s,
            pulse=pulse,
            stop=process.stop,
        )
