"""The services as they are, put together over one store, one broker and one payload store."""

import asyncio
from typing import TYPE_CHECKING, Any, cast

from msgspec import structs
from tests.simulation.broker import ExactConsumer
from tests.simulation.files import NoFiles
from tests.simulation.fleet import Process
from tests.simulation.wires import Wire, WiredConsumer

from noetl_chassis import loop
from noetl_chassis.health import HealthChecks
from noetl_chassis.lifecycle import ServiceProcess as Lifecycle
from noetl_chassis.loop import LoopHealth
from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_contracts.commands.command_work import DEFAULT_POOL, IO_LANE
from noetl_contracts.commands.worker_pools import WorkerHeartbeat
from noetl_contracts.ids import WorkerId
from noetl_messaging.memory.broker_settings import MemoryBrokerSettings
from noetl_messaging.memory.consumer import MemoryBacklogs
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.streams import topology
from noetl_outbox.service import OutboxPublisher
from noetl_planner import wiring as planning
from noetl_planner.api.http.services import ApiServices
from noetl_planner.settings import Settings as PlannerSettings
from noetl_planner.shards import shard_leases
from noetl_planner.shards.shard_leases import ShardOwner
from noetl_planner.shards.store_waits import StoreWaits
from noetl_planner.shards.worker_presence import WorkerPresence
from noetl_projector import settings as projector_settings
from noetl_projector.projection.stores import ProjectorStores
from noetl_projector.service import Projector
from noetl_projector.settings import Settings as ProjectorSettings
from noetl_reaper import settings as reaper_settings
from noetl_reaper.service import Reaper, ReaperTables
from noetl_reaper.settings import Settings as ReaperSettings
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
from noetl_storage.memory.triggers import (
    MemorySchedules,
    MemoryTriggers,
    MemoryWebhooks,
)
from noetl_worker import wiring as working
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.keychain.credential_vault import CredentialVault
from noetl_worker.keychain.entries import EntrySources
from noetl_worker.keychain.keychain import EntryCache, Keyring
from noetl_worker.payloads.payload_retry import retry_store_call
from noetl_worker.settings import Settings as WorkerSettings
from noetl_worker.tools import Tools

if TYPE_CHECKING:
    from tests.simulation.world import World

SHARDS = 2
LEASE_S = 8.0
SECRET_KEY = "c2ltdWxhdGlvbi1zaW11bGF0aW9uLXNpbXVsYXRpb24="  # noqa: S105 - a secret of nobody
SECRET = "canary-5f0c2d7be19a44"  # noqa: S105 - it is looked for everywhere afterwards
_PULSE_S = 30.0
_NOWHERE = "memory://"

PLANNER = PlannerSettings(
    postgres_dsn=_NOWHERE,
    nats_url=_NOWHERE,
    payload_url=_NOWHERE,
    secret_key=SECRET_KEY,
    shard_count=SHARDS,
    publish_lease_s=4.0,
    command_lease_s=LEASE_S,
    command_heartbeat_s=2.0,
    cancel_grace_s=6.0,
    step_attempts_max=1000,
    states_max=2,
    auth="off-on-loopback",
)
WORKER = WorkerSettings(
    # Retries of flaky tasks wait longer: each is a timer of the planner.
    held_wait_s=0.1,
    nats_url=_NOWHERE,
    payload_url=_NOWHERE,
    secret_key=SECRET_KEY,
    shard_count=SHARDS,
    lease_s=LEASE_S,
    commands_max=32,
    fetch_messages_max=3,
    secret_env={"CANARY": SECRET},
)
PROJECTOR = ProjectorSettings(
    postgres_dsn=_NOWHERE,
    nats_url=_NOWHERE,
    execution_shard_count=SHARDS,
    fetch_wait_s=1.0,
    states_max=2,
    gap_page_events=7,
    snapshot_every_versions=20,
    snapshot_at_end_versions=10,
)
REAPER = ReaperSettings(
    postgres_dsn=_NOWHERE,
    nats_url=_NOWHERE,
    shard_count=SHARDS,
    lease_s=LEASE_S,
    leader_lease_s=6.0,
    overdue_grace_s=1.0,
    request_age_s=3.0,
    stalled_age_s=15.0,
)


class NoPartitions:
    """A ledger that is one table."""

    async def ensure_partitions(self, months: int) -> int:
        """Nothing is missing."""
        return 0


class KnownWorkers(WorkerPresence):
    """Workers that are always there, and take few commands: loops of a few items make batches."""

    def list_beats(self) -> tuple[WorkerHeartbeat, ...]:
        """Return one worker of the pool of all commands."""
        return (
            WorkerHeartbeat(
                worker_id=WorkerId("w"),
                pool=DEFAULT_POOL,
                lanes=(IO_LANE,),
                running=0,
                capacity=1,
                takes_offers=False,
                takes_batches=True,
            ),
        )


def _planning(world: "World", process: Process) -> planning.Adapters:
    store, wired = world.store, process.wired
    return planning.Adapters(
        ledger=wired(MemoryLedger(store), "ledger"),
        requests=wired(MemoryRequests(store), "ledger"),
        outbox=wired(MemoryOutbox(store), "ledger"),
        shards=wired(MemoryShardLeases(store), "ledger"),
        instances=wired(MemoryInstances(store), "ledger"),
        projections=wired(MemoryProjections(store), "ledger"),
        snapshots=wired(MemorySnapshots(store), "ledger"),
        audit=MemoryLedgerAudit(store),
        past=wired(MemoryPast(store), "ledger"),
        holds=MemoryHolds(store),
        durability=MemoryDurability(),
        lineage=MemoryLineageHistories(store),
        objects=MemoryBusinessObjects(store),
        pages=MemoryHistoryPages(store),
        identities=MemoryIdentities(store),
        quotas=MemoryQuotas(store),
        administration=MemoryAdministrationLog(store),
        catalog=wired(MemoryCatalog(store), "ledger"),
        credentials=MemoryCredentials(store),
        schedules=MemorySchedules(store),
        sessions=MemorySessions(store),
        notifications=MemoryNotifications(store),
        webhooks=MemoryWebhooks(store),
        triggers=MemoryTriggers(store),
        dead_letter_log=MemoryDeadLetterLog(store),
        states=wired(MemoryStates(store), "ledger"),
        payloads=wired(world.payloads, "payloads"),
        publisher=wired(world.broker, "broker"),
        consumer=lambda *, name, stream=topology.INGEST: _consumer(world, process, stream, name),
        dead_letters=wired(MemoryDeadLetters(world.broker), "broker"),
        hints=wired(world.broker, "broker"),
        backlogs=wired(MemoryBacklogs(world.broker), "broker"),
        broker_settings=MemoryBrokerSettings(),
        clock=process.clock,
        snowflake=process.snowflake,
        worker_presence=KnownWorkers(process.clock),
        store_waits=StoreWaits(process.clock),
    )


def _consumer(world: "World", process: Process, stream: str, name: str) -> WiredConsumer:
    return WiredConsumer(
        ExactConsumer(world.broker, stream=stream, name=name), Wire(process, "broker")
    )


def api(
    world: "World", process: Process, tenant: str, adapters: planning.Adapters | None = None
) -> ApiServices:
    """What the API of a planner's process is handed, for one tenant; without any shards here."""
    config = structs.replace(PLANNER, tenant_id=tenant)
    lifecycle = Lifecycle(
        instance=process.name, stop=process.stop, health=HealthChecks(), health_port=0
    )
    adapters = adapters or _planning(world, process)
    return planning.build_api_services(adapters, config, lifecycle, process.stop)


async def plan(world: "World", process: Process) -> None:
    """Run a planner, and what it begins for those who ask its own API."""
    adapters = _planning(world, process)
    world.open_doors(process, lambda tenant: api(world, process, tenant, adapters))
    together = planning.build_shard_context(adapters, PLANNER, producer=process.name)
    owner = ShardOwner(
        leases=adapters.shards,
        instances=adapters.instances,
        owner=process.name,
        lease_s=PLANNER.shard_lease_s,
        shard_count=SHARDS,
        open_shard=lambda fence: planning.build_shard_planners(fence, adapters, together, PLANNER),
    )
    await shard_leases.run_shards(
        owner=owner,
        publishing=together.message_publisher,
        gathering=together.loop_queue,
        serve_requests=_serve_nobody,
        renewal_s=PLANNER.shard_renewal_s,
        loop_health=_pulse(process),
        stop=process.stop,
    )


async def work(world: "World", process: Process) -> None:
    """Run a worker whose tools do all in the process."""
    mask = SecretMask()
    payloads = process.wired(world.payloads, "payloads")
    adapters = working.Adapters(
        consumers=tuple(
            cast("Any", _consumer(world, process, topology.COMMANDS, name))
            for name in topology.list_worker_consumers(WORKER.pool)
        ),
        publisher=process.wired(world.broker, "broker"),
        hints=process.wired(world.broker, "broker"),
        registers=process.wired(world.registers, "broker"),
        dead_letters=process.wired(MemoryDeadLetters(world.broker), "broker"),
        payloads=payloads,
        tools=_tools(world, process, mask, payloads),
        mask=mask,
        clock=process.clock,
    )
    # Every worker is a user of its own, whichever process of it runs.
    user = process.name.partition(".")[0]
    config = structs.replace(WORKER, nats_url=f"nats://{user}@nowhere")
    worker = working.build_worker(adapters, config, instance=process.name)
    await worker.run(stop=process.stop, loop_health=_pulse(process), drain_s=5.0)


def _tools(world: "World", process: Process, mask: SecretMask, payloads: Any) -> Tools:
    """Have the tools that need nothing outside; `python` and claims are played by the world."""
    sealer = CredentialSealer(SECRET_KEY)
    vault = CredentialVault(
        objects=payloads, ask_again=retry_store_call, sealer=sealer, mask=mask, clock=process.clock
    )
    none: Any = None
    return Tools(
        http=none,
        postgres=cast("Any", world.table(process)),
        python=cast("Any", world.site(process)),
        shell=none,
        container=none,
        nats=none,
        spark=none,
        duckdb=none,
        artifact=none,
        transfer=none,
        credential_test=none,
        spark_session=none,
        keyring=Keyring(
            sources=EntrySources(vault=vault, tokens=none, environ=WORKER.secret_env),
            sealer=sealer,
            entry_cache=EntryCache(),
            clock=process.clock,
            template_env={},
        ),
        lender=NoFiles(),
    )


async def publish(world: "World", process: Process) -> None:
    """Run an outbox."""
    outbox = OutboxPublisher(
        outbox=process.wired(MemoryOutbox(world.store), "ledger"),
        publisher=process.wired(world.broker, "broker"),
        hints=process.wired(world.broker, "broker"),
        check=lambda: None,
        owner=process.name,
        claim_lease_s=4.0,
        rows_max=16,
    )
    await outbox.run_until_stopped(
        stop=process.stop, loop_health=_pulse(process), poll_s=1.0, measure_s=30.0
    )


async def project(world: "World", process: Process, *, index: int, count: int) -> None:
    """Run a projector of some shards."""
    config = structs.replace(PROJECTOR, shard_index=index, shard_count=count)
    name = topology.build_projector_consumer(index=index, count=count)
    projections = process.wired(MemoryProjections(world.store), "ledger")
    projector = Projector(
        stores=ProjectorStores(
            consumer=_consumer(world, process, topology.EVENTS, name),
            letters=process.wired(MemoryDeadLetters(world.broker), "broker"),
            ledger=process.wired(MemoryLedger(world.store), "ledger"),
            projections=projections,
            snapshots=process.wired(MemorySnapshots(world.store), "ledger"),
            past=process.wired(MemoryPast(world.store), "ledger"),
            rebuilds=projections,
        ),
        clock=process.clock,
        policy=projector_settings.build_policy(config),
    )
    stop, rest_s = process.stop, config.catch_up_interval_s
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(
            loop.run_while_busy(projector.project_batches, idle_s=0, stop=stop, name="project")
        )
        tasks.create_task(loop.run_every(rest_s, projector.catch_up, stop=stop, name="catch up"))
        tasks.create_task(projector.guard.watch_for_failure(stop))


async def sweep(world: "World", process: Process) -> None:
    """Run a reaper."""
    reaper = Reaper(
        tables=ReaperTables(
            instances=process.wired(MemoryInstances(world.store), "ledger"),
            requests=process.wired(MemoryRequests(world.store), "ledger"),
            projections=process.wired(MemoryProjections(world.store), "ledger"),
            ledger=process.wired(MemoryLedger(world.store), "ledger"),
            partitions=NoPartitions(),
        ),
        streams=process.wired(world.broker, "broker"),
        letters=process.wired(MemoryDeadLetters(world.broker), "broker"),
        hints=process.wired(world.broker, "broker"),
        clock=process.clock,
        owner=process.name,
        policy=reaper_settings.build_policy(REAPER),
        bounds=reaper_settings.build_bounds(REAPER),
    )
    await loop.run_every(
        REAPER.sweep_interval_s,
        reaper.sweep,
        stop=process.stop,
        name="sweep",
        loop_health=_pulse(process),
    )


async def _serve_nobody(stop: asyncio.Event) -> None:
    await stop.wait()


def _pulse(process: Process) -> LoopHealth:
    return LoopHealth("simulated", stale_s=_PULSE_S, clock=process.clock)
