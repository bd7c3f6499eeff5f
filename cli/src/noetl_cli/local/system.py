"""Composition root of the one-process run: planner, worker, projector and outbox over memory."""

import asyncio
import secrets
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from msgspec import Struct, structs

from noetl_chassis import loop, settings
from noetl_chassis.clock import SystemClock
from noetl_chassis.health import HealthChecks
from noetl_chassis.identity import SnowflakeIds
from noetl_chassis.lifecycle import ServiceProcess
from noetl_chassis.loop import LoopHealth
from noetl_chassis.task_group import open_task_group
from noetl_cli.stack.supervision import service_addresses
from noetl_contracts.commands.command_work import IO_LANE, SPARK_LANE
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.requests import inbox
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.broker_settings import MemoryBrokerSettings
from noetl_messaging.memory.consumer import MemoryBacklogs, MemoryConsumer
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.memory.registers import MemoryRegisters
from noetl_messaging.streams import topology
from noetl_outbox.service import OutboxPublisher
from noetl_planner import settings as planner_settings
from noetl_planner import wiring as planning
from noetl_planner.api import server
from noetl_planner.api.app import create_app
from noetl_planner.api.http.services import ApiServices
from noetl_planner.shards import shard_leases
from noetl_planner.shards.shard_leases import ShardOwner
from noetl_planner.shards.store_waits import StoreWaits
from noetl_planner.shards.worker_presence import WorkerPresence
from noetl_projector import settings as projector_settings
from noetl_projector.projection.stores import ProjectorStores
from noetl_projector.service import Projector
from noetl_storage.memory.business_objects import MemoryBusinessObjects
from noetl_storage.memory.durability import MemoryDurability
from noetl_storage.memory.history_pages import MemoryHistoryPages
from noetl_storage.memory.holds import MemoryHolds
from noetl_storage.memory.identities import (
    MemoryAdministrationLog,
    MemoryIdentities,
    MemoryQuotas,
    MemorySessions,
)
from noetl_storage.memory.leases import MemoryInstances, MemoryShardLeases
from noetl_storage.memory.ledger import MemoryLedger, MemoryLedgerAudit
from noetl_storage.memory.lineage import MemoryLineageHistories
from noetl_storage.memory.notifications import MemoryNotifications
from noetl_storage.memory.outbox import MemoryDeadLetterLog, MemoryOutbox, MemoryRequests
from noetl_storage.memory.projections import MemoryProjections
from noetl_storage.memory.registry import (
    MemoryCatalog,
    MemoryCredentials,
    MemoryPast,
    MemorySnapshots,
)
from noetl_storage.memory.states import MemoryStates
from noetl_storage.memory.store import MemoryStore
from noetl_storage.memory.triggers import (
    MemorySchedules,
    MemoryTriggers,
    MemoryWebhooks,
)
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.ports.ledger_ports import Payloads
from noetl_worker import settings as worker_settings
from noetl_worker import wiring as working
from noetl_worker.service import Worker
from noetl_worker.tool_factory import open_tools
from noetl_worker.wiring import open_tiers

NAME = "local"
LETTERS_S = 0.5
LETTERS_MAX = 100
SECRET_KEY_BYTES = 32
_ADDRESS = "memory://"
# One execution needs one shard.
_SHARDS = 1
# Stopping waits for the fetches under way.
_FETCH_WAIT_S = "0.2"
_DRAIN_S = 5.0


class ServiceSettings(Struct, frozen=True, kw_only=True):
    """The services' own settings; the environment may change them as it would the services'."""

    planner: planner_settings.Settings
    worker: worker_settings.Settings
    projector: projector_settings.Settings


class LocalSystem(Struct, frozen=True, kw_only=True):
    """All services of one process, ready to run."""

    process: ServiceProcess
    configs: ServiceSettings
    adapters: planning.Adapters
    services: ApiServices
    worker: Worker
    spark_worker: Worker
    projector: Projector
    outbox: OutboxPublisher


def load_settings(environ: dict[str, str], payload_folder: Path) -> ServiceSettings:
    """Read the settings, with what a run in one process needs in place of addresses."""
    addresses = {
        "NATS_URL": _ADDRESS,
        "POSTGRES_DSN": _ADDRESS,
        "PAYLOAD_URL": payload_folder.as_uri(),
        "SECRET_KEY": b64encode(secrets.token_bytes(SECRET_KEY_BYTES)).decode(),
        "SHARD_COUNT": str(_SHARDS),
        "FETCH_WAIT_S": _FETCH_WAIT_S,
    }
    planner = _fix_addresses(planner_settings.PREFIX, environ, addresses)
    worker = _fix_addresses(
        worker_settings.PREFIX,
        {
            # As with the embedded stack, a playbook under development may call this machine.
            f"{worker_settings.PREFIX}HTTP_ALLOW": "127.0.0.1,localhost",
            **service_addresses.WORKER_DEFAULTS,
            # Nobody is there to share memory with.
            f"{worker_settings.PREFIX}SHARED_BYTES": "0",
            **environ,
        },
        {name: value for name, value in addresses.items() if name != "POSTGRES_DSN"},
    )
    without = {"PAYLOAD_URL", "SECRET_KEY"}
    projector = _fix_addresses(
        projector_settings.PREFIX,
        environ,
        {name: value for name, value in addresses.items() if name not in without}
        | {"EXECUTION_SHARD_COUNT": str(_SHARDS)},
    )
    loaded = settings.load_settings(
        planner_settings.Settings, prefix=planner_settings.PREFIX, environ=planner
    )
    return ServiceSettings(
        # One worker serves every pool, so the planner accepts any pool name.
        planner=structs.replace(loaded, pools=(), http_pools=()),
        worker=settings.load_settings(
            worker_settings.Settings, prefix=worker_settings.PREFIX, environ=worker
        ),
        projector=projector_settings.load_settings(projector),
    )


@asynccontextmanager
async def open_system(configs: ServiceSettings) -> AsyncIterator[LocalSystem]:
    """Put every service together over one store and one broker."""
    clock = SystemClock()
    store = MemoryStore(clock=clock)
    declared = topology.declare_topology(shard_count=_SHARDS, lease_s=configs.worker.lease_s)
    broker = MemoryBroker(topology.share_default_pool(declared), clock)
    await broker.ensure_streams()
    process = _build_process()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        payloads = await enter(open_payloads(configs.worker.payload_url))
        near = await enter(open_tiers(configs.worker, payloads, clock))
        tools, mask = await enter(open_tools(configs.worker, near, clock, near=near))
        adapters = _build_planner_adapters(store, broker, payloads, clock)
        commands = working.Adapters(
            consumers=_command_consumers(broker, configs, IO_LANE),
            publisher=broker,
            hints=broker,
            registers=MemoryRegisters(),
            dead_letters=adapters.dead_letters,
            payloads=near,
            tools=tools,
            mask=mask,
            clock=clock,
        )
        yield LocalSystem(
            process=process,
            configs=configs,
            adapters=adapters,
            services=planning.build_api_services(adapters, configs.planner, process, process.stop),
            worker=working.build_worker(commands, configs.worker, instance=NAME),
            # No other process reads this store: its frames run here, in the same event loop.
            spark_worker=working.build_worker(
                structs.replace(
                    commands, consumers=_command_consumers(broker, configs, SPARK_LANE)
                ),
                configs.worker,
                instance=NAME,
                lane=SPARK_LANE,
            ),
            projector=_build_projector(adapters, broker, configs, store),
            outbox=_build_outbox(adapters, broker),
        )


def _build_planner_adapters(
    store: MemoryStore, broker: MemoryBroker, payloads: Payloads, clock: SystemClock
) -> planning.Adapters:
    """Build what the planner is handed, over one store and one broker."""
    return planning.Adapters(
        ledger=MemoryLedger(store),
        requests=MemoryRequests(store),
        outbox=MemoryOutbox(store),
        shards=MemoryShardLeases(store),
        instances=MemoryInstances(store),
        projections=MemoryProjections(store),
        snapshots=MemorySnapshots(store),
        audit=MemoryLedgerAudit(store),
        past=MemoryPast(store),
        holds=MemoryHolds(store),
        durability=MemoryDurability(),
        lineage=MemoryLineageHistories(store),
        objects=MemoryBusinessObjects(store),
        pages=MemoryHistoryPages(store),
        identities=MemoryIdentities(store),
        quotas=MemoryQuotas(store),
        administration=MemoryAdministrationLog(store),
        catalog=MemoryCatalog(store),
        credentials=MemoryCredentials(store),
        schedules=MemorySchedules(store),
        sessions=MemorySessions(store),
        notifications=MemoryNotifications(store),
        webhooks=MemoryWebhooks(store),
        triggers=MemoryTriggers(store),
        dead_letter_log=MemoryDeadLetterLog(store),
        states=MemoryStates(store),
        payloads=payloads,
        publisher=broker,
        consumer=partial(MemoryConsumer, broker, stream=topology.INGEST),
        dead_letters=MemoryDeadLetters(broker),
        hints=broker,
        backlogs=MemoryBacklogs(broker),
        broker_settings=MemoryBrokerSettings(),
        clock=clock,
        snowflake=SnowflakeIds(node=0, clock=clock),
        worker_presence=WorkerPresence(clock),
        store_waits=StoreWaits(clock),
    )


def _build_process() -> ServiceProcess:
    return ServiceProcess(instance=NAME, stop=asyncio.Event(), health=HealthChecks(), health_port=0)


def _command_consumers(
    broker: MemoryBroker, configs: ServiceSettings, host: str
) -> tuple[MemoryConsumer, ...]:
    return tuple(
        MemoryConsumer(broker, stream=topology.COMMANDS, name=name)
        for name in topology.list_worker_consumers(configs.worker.pool, host)
    )


async def run_services(system: LocalSystem, *, listens: bool = False) -> None:
    """Run every service until the process is told to stop.

    With `listens` the API answers on its port, and messages find the tasks that wait for them.
    """
    stop, rest_s = system.process.stop, system.configs.projector.catch_up_interval_s
    async with open_task_group() as tasks:
        tasks.create_task(_run_planner(system, _api_server(system) if listens else _wait_for_stop))
        if listens:
            match = partial(_deliver_early_messages, system)
            tasks.create_task(loop.run_every(LETTERS_S, match, stop=stop, name="letters"))
        for worker in (system.worker, system.spark_worker):
            loop_health = LoopHealth("commands", stale_s=30)
            tasks.create_task(worker.run(stop=stop, loop_health=loop_health, drain_s=_DRAIN_S))
        tasks.create_task(
            system.outbox.run_until_stopped(
                stop=stop, loop_health=LoopHealth("publish", stale_s=30), poll_s=0.2, measure_s=5.0
            )
        )
        tasks.create_task(
            loop.run_while_busy(
                system.projector.project_batches, idle_s=0, stop=stop, name="project"
            )
        )
        tasks.create_task(
            loop.run_every(rest_s, system.projector.catch_up, stop=stop, name="catch up")
        )


async def _run_planner(system: LocalSystem, serve_requests: shard_leases.ServeRequests) -> None:
    config, adapters = system.configs.planner, system.adapters
    together = planning.build_shard_context(
        adapters, config, producer=planning.name_producer(config, NAME)
    )
    owner = ShardOwner(
        leases=adapters.shards,
        instances=adapters.instances,
        owner=NAME,
        lease_s=config.shard_lease_s,
        shard_count=config.shard_count,
        open_shard=lambda fence: planning.build_shard_planners(fence, adapters, together, config),
    )
    await shard_leases.run_shards(
        owner=owner,
        publishing=together.message_publisher,
        gathering=together.loop_queue,
        serve_requests=serve_requests,
        renewal_s=config.shard_renewal_s,
        loop_health=LoopHealth("shards", stale_s=30),
        stop=system.process.stop,
    )


def _api_server(system: LocalSystem) -> shard_leases.ServeRequests:
    config = system.configs.planner

    async def serve_api(stop: asyncio.Event) -> None:
        app = create_app(system.services)
        await server.serve_api(app, host=config.http_host, port=config.http_port, stop=stop)

    return serve_api


async def _deliver_early_messages(system: LocalSystem) -> None:
    """Do what the reaper does with messages that came before anybody waited."""
    requests = system.adapters.requests
    for match in await requests.list_matches(matches_max=LETTERS_MAX):
        request = inbox.build_delivery_request(
            match.letter, match.wait, routes=IngestRoutes(shard_count=_SHARDS), producer=NAME
        )
        await requests.deliver_message(
            match.letter.letter_id, open_wait=inbox.build_wait_name(match.wait), request=request
        )


async def _wait_for_stop(stop: asyncio.Event) -> None:
    await stop.wait()


def _build_projector(
    adapters: planning.Adapters, broker: MemoryBroker, configs: ServiceSettings, store: MemoryStore
) -> Projector:
    name = topology.build_projector_consumer(index=0, count=1)
    return Projector(
        stores=ProjectorStores(
            consumer=MemoryConsumer(broker, stream=topology.EVENTS, name=name),
            letters=adapters.dead_letters,
            ledger=adapters.ledger,
            projections=adapters.projections,
            snapshots=adapters.snapshots,
            past=adapters.past,
            rebuilds=MemoryProjections(store),
        ),
        clock=adapters.clock,
        policy=projector_settings.build_policy(configs.projector),
    )


def _build_outbox(adapters: planning.Adapters, broker: MemoryBroker) -> OutboxPublisher:
    return OutboxPublisher(
        outbox=adapters.outbox,
        publisher=broker,
        hints=broker,
        check=_report_healthy,
        owner=NAME,
        claim_lease_s=10.0,
        rows_max=256,
    )


def _report_healthy() -> str | None:
    return None


def _fix_addresses(prefix: str, environ: dict[str, str], fixed: dict[str, str]) -> dict[str, str]:
    """Let the environment change everything but the addresses."""
    return {**environ, **{prefix + name: value for name, value in fixed.items()}}
