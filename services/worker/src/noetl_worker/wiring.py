"""Builds a worker from opened adapters and settings."""

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

import structlog
from msgspec import Struct

from noetl_chassis import loop
from noetl_chassis.clock import Clock
from noetl_chassis.observability import instruments, names
from noetl_chassis.seals.payload_seal import read_payload_keys
from noetl_chassis.settings import get_process_locality
from noetl_contracts import locators, subjects
from noetl_contracts.commands.command_work import IO_LANE, SPARK_LANE
from noetl_contracts.ids import OrganizationId, TenantId, WorkerId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.subjects import Reporter
from noetl_messaging.streams.ports import Consumer, DeadLetters, Hints, Publisher, Registers
from noetl_messaging.streams.worker_permissions import find_user
from noetl_storage.payloads import master_keys
from noetl_storage.payloads.factory import open_payloads
from noetl_storage.payloads.payload_store import PayloadStore
from noetl_storage.payloads.s3_buckets import open_buckets
from noetl_storage.ports.errors import StorageMisconfigured
from noetl_storage.ports.ledger_ports import Buckets, Payloads
from noetl_storage.ports.payload_ports import TierName
from noetl_storage.process.lazy_import import LazyModule
from noetl_storage.tiers import segment_directory
from noetl_storage.tiers.disk import DiskTier
from noetl_storage.tiers.segment_directory import SegmentDirectoryRefused
from noetl_storage.tiers.shared import SharedTier
from noetl_storage.tiers.tiered_payloads import TieredPayloads
from noetl_worker.commands.call_pacer import CallPacer
from noetl_worker.commands.command_lease import CancelledExecutions
from noetl_worker.commands.command_progress import publish_progress
from noetl_worker.commands.fact_publisher import FactPublisher, ReportRoute
from noetl_worker.commands.intake import OTHERS, Intake, SharedIntake
from noetl_worker.commands.offers import OfferIntake
from noetl_worker.domain import egress
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.domain.unit_identity import CallbackAddresses
from noetl_worker.payloads.tenant_payloads import PayloadCache
from noetl_worker.runner.command_host import CommandHost, HostServices
from noetl_worker.service import PresenceAnnouncer, Worker
from noetl_worker.settings import (
    PREFIX,
    ExecutorKeys,
    Settings,
    parse_tenant_weights,
    read_inherited_environ,
    read_java_environ,
    set_variables,
)
from noetl_worker.spark.grants.payload_scope import StoreLogin
from noetl_worker.spark.kubernetes import Kubernetes
from noetl_worker.spark.session_options import SessionOptions, read_conf, show_address
from noetl_worker.spark.tables import store_access
from noetl_worker.spark.wave_runner import WaveLimits, WaveRunner
from noetl_worker.tools import Tools, shell
from noetl_worker.tools.container.docker_api import DockerApi
from noetl_worker.tools.container.docker_runtime import DockerRuntime
from noetl_worker.tools.container.kubernetes.api import KubernetesApi
from noetl_worker.tools.container.kubernetes.runtime import KubernetesRuntime, WorkerPod
from noetl_worker.tools.container.plan import ContainerLimits
from noetl_worker.tools.container.runtime import ContainerRuntime
from noetl_worker.tools.http import http_tool
from noetl_worker.tools.postgres import postgres_pool
from noetl_worker.tools.python import environments, python_tool
from noetl_worker.tools.spark import code_process
from noetl_worker.workspace import checkout

if TYPE_CHECKING:
    from noetl_worker.tools.duckdb import duckdb_session
    from noetl_worker.tools.spark import grant_maker, spark_tool
else:
    duckdb_session = LazyModule("noetl_worker.tools.duckdb.duckdb_session")
    grant_maker = LazyModule("noetl_worker.tools.spark.grant_maker")
    spark_tool = LazyModule("noetl_worker.tools.spark.spark_tool")

# A lease begins, as far as a worker can tell, when it asks: asking lasts a small part of one.
_WAITS_PER_LEASE = 5
# Keys of the Secret that executors on Kubernetes read: the chart's names.
_SECRET_KEYS = ("nats-url", "payload-access-key", "payload-secret-key", "secret-key")
_SEAL_KEY = "payload-seal-key"
_BACKENDS = {"memory": "memory", "file": "disk", "s3": "s3", "gs": "gcs", "azure": "azure"}


class Adapters(Struct, frozen=True, kw_only=True):
    """What a worker reaches the world through."""

    # One for each of `lanes.IO_LANES`, in their order.
    consumers: tuple[Consumer, ...]
    # The same for each tenant that has its own share of the pool.
    shares: Mapping[str, tuple[Consumer, ...]] = {}
    publisher: Publisher
    hints: Hints
    registers: Registers
    dead_letters: DeadLetters
    payloads: Payloads
    tools: Tools
    mask: SecretMask
    clock: Clock


def build_worker(
    adapters: Adapters,
    config: Settings,
    *,
    instance: str,
    lane: str = IO_LANE,
    entry: Callable[..., Any] | None = None,
) -> Worker:
    """Put the worker of one lane together; with `entry` the spark lane's frames run in waves."""
    identity = find_user(config.nats_url)
    worker_id = WorkerId(subjects.build_worker_id(identity, instance) if identity else instance)
    tenant_id, organization_id = TenantId(config.tenant_id), OrganizationId(config.organization_id)
    locality = get_process_locality(config)
    fact_publisher = FactPublisher(
        publisher=adapters.publisher,
        worker_id=worker_id,
        route=ReportRoute(
            routes=IngestRoutes(
                shard_count=config.shard_count,
                tenants=frozenset(parse_tenant_weights(config)),
            ),
            reporter=Reporter(config.pool, identity) if identity else None,
        ),
        mask=adapters.mask,
        clock=adapters.clock,
        locality=locality,
        max_distance=config.max_distance,
        locator=locators.build_worker_locator(tenant_id, organization_id, locality, worker_id),
    )
    is_spark = lane == SPARK_LANE
    commands_max = config.spark_frames_max if is_spark else config.commands_max
    host = CommandHost(
        HostServices(
            tools=adapters.tools,
            payloads=adapters.payloads,
            remembered=PayloadCache(bytes_max=config.payload_memory_bytes),
            fact_publisher=fact_publisher,
            mask=adapters.mask,
            hints=adapters.hints,
            dead_letters=adapters.dead_letters,
            pool=config.pool,
            lease_s=config.lease_s,
            commands_max=commands_max,
            cancelled_executions=CancelledExecutions(adapters.hints),
            pacer=CallPacer(registers=adapters.registers, clock=adapters.clock),
            callbacks=CallbackAddresses(base_url=config.callback_url, secret=config.secret_key),
            backend=get_payload_backend(config),
            waves=None
            if entry is None or not is_spark
            else _build_wave_runner(adapters, config, fact_publisher, entry),
            held_wait_s=config.held_wait_s,
        )
    )
    return Worker(
        intake=_build_intake(adapters, config),
        lane=host,
        commands_max=commands_max,
        messages_max=config.spark_wave_frames_max if is_spark else config.fetch_messages_max,
        wait_s=min(config.fetch_wait_s, config.lease_s / _WAITS_PER_LEASE),
        presence_announcer=_build_announcer(adapters, config, fact_publisher, lane),
    )


def _build_intake(adapters: Adapters, config: Settings) -> Intake | SharedIntake:
    intake = Intake(adapters.consumers)
    if not adapters.shares:
        return intake
    intakes = {tenant_id: Intake(lanes) for tenant_id, lanes in adapters.shares.items()}
    common = {} if config.only_tenants else {OTHERS: intake}
    return SharedIntake({**common, **intakes}, weights=parse_tenant_weights(config))


def _build_announcer(
    adapters: Adapters, config: Settings, fact_publisher: FactPublisher, lane: str
) -> PresenceAnnouncer:
    """Let each lane of a process say what it has room for, and hear what it is offered."""
    return PresenceAnnouncer(
        offers=OfferIntake(fact_publisher=fact_publisher, hints=adapters.hints),
        hints=adapters.hints,
        worker_id=fact_publisher.worker_id,
        pool=config.pool,
        lanes=(lane,),
        locality=get_process_locality(config),
        max_distance=config.max_distance,
        takes_offers=not config.only_tenants,
        tenants=_list_only_tenants(config),
        find_missing_walls=adapters.tools.python.find_missing_walls,
    )


def _list_only_tenants(config: Settings) -> tuple[str, ...]:
    """Return whose commands a worker takes; none named: everybody's."""
    return tuple(parse_tenant_weights(config)) if config.only_tenants else ()


def get_payload_backend(config: Settings) -> str:
    """Name the payload store as playbooks do."""
    return _BACKENDS.get(config.payload_url.partition(":")[0], "disk")


def _build_wave_runner(
    adapters: Adapters, config: Settings, fact_publisher: FactPublisher, entry: Callable[..., Any]
) -> WaveRunner:
    return WaveRunner(
        spark_session=adapters.tools.spark_session,
        entry=entry,
        payloads=adapters.payloads,
        worker_id=fact_publisher.worker_id,
        clock=adapters.clock,
        limits=WaveLimits(
            frames_max=config.spark_wave_frames_max,
            waves_max=config.spark_waves_max,
            parts_max=config.spark_partitions_max,
        ),
        tell_progress=partial(publish_progress, adapters.hints),
    )


def build_http_limits(config: Settings) -> http_tool.HttpLimits:
    """Read what the http tool may use."""
    return http_tool.HttpLimits(
        allowances=tuple(egress.parse_allowance(entry) for entry in config.http_allow),
        platform_ports=frozenset(config.http_platform_ports),
        connections_max=config.http_connections_max,
        response_bytes_max=config.http_response_bytes_max,
        sends_traceparent=config.send_traceparent,
    )


def open_bucket_store() -> AbstractAsyncContextManager[Buckets]:
    """Hold the clients of buckets that playbooks name."""
    return open_buckets()


def build_postgres_limits(config: Settings) -> postgres_pool.PoolLimits:
    """Read how many connections a credential has."""
    return postgres_pool.PoolLimits(
        most=config.postgres_connections_max,
        soon=config.postgres_connections_soon,
        wait_s=config.postgres_wait_s,
    )


def build_workspace_limits(config: Settings) -> checkout.WorkspaceLimits:
    """Read how many files an execution keeps."""
    return checkout.WorkspaceLimits(
        files_max=config.workspace_files_max, bytes_max=config.workspace_bytes_max
    )


def build_duckdb_limits(config: Settings) -> "duckdb_session.DuckdbLimits":
    """Read what a DuckDB database may use."""
    return duckdb_session.DuckdbLimits(
        memory_bytes=config.duckdb_memory_bytes,
        threads=config.duckdb_threads,
        databases_max=config.duckdb_databases_max,
    )


def build_spark_options(config: Settings, folder: Path) -> SessionOptions:
    """Read what a Spark session is started with; its files have a `folder` of their own."""
    conf, problem = read_conf(config.spark_conf)
    return SessionOptions(
        master=config.spark_master,
        folder=folder,
        adopt=partial(_adopt_variables, config),
        environ=read_java_environ(),
        conf=conf,
        problem=problem,
        python=config.spark_python or sys.executable,
        memory_bytes=config.spark_memory_bytes,
        jobs_max=config.spark_jobs_max,
        reach_s=config.spark_reach_s,
        variables=_list_executor_variables(config),
        has_page=config.spark_ui,
        is_prewarmed=config.spark_prewarm and SPARK_LANE in config.lanes,
        kubernetes=_build_kubernetes_options(config),
    )


def _adopt_variables(config: Settings, variables: Mapping[str, str]) -> None:
    """Set what Spark's launcher reads; jobs open stores here with the keys of the worker."""
    set_variables({**variables, **_build_executor_keys(config).build_environ()})
    store_access.use_worker_keys()


def _build_kubernetes_options(config: Settings) -> Kubernetes:
    """Read how executors become pods; what is a secret comes from theirs, not from here."""
    return Kubernetes(
        image=config.spark_image,
        namespace=config.spark_namespace,
        service_account=config.spark_service_account,
        executors=config.spark_executors,
        driver_host=config.spark_driver_host,
        driver_pod=config.spark_driver_pod,
        driver_port=config.spark_driver_port,
        secret=config.spark_secret,
        variables=_list_executor_variables(config),
        secret_keys=_list_secret_keys(config),
    )


def _list_executor_variables(config: Settings) -> dict[str, str]:
    """Return what executors elsewhere need of this worker's settings and all may see."""
    return {
        f"{PREFIX}PAYLOAD_URL": config.payload_url,
        f"{PREFIX}POOL": config.pool,
        f"{PREFIX}TENANT_ID": config.tenant_id,
        f"{PREFIX}ORGANIZATION_ID": config.organization_id,
        f"{PREFIX}SHARD_COUNT": str(config.shard_count),
        f"{PREFIX}HTTP_ALLOW": ",".join(config.http_allow),
        f"{PREFIX}HTTP_PLATFORM_PORTS": ",".join(map(str, config.http_platform_ports)),
    }


def _list_secret_keys(config: Settings) -> dict[str, str]:
    """Name the variables that executors get from the Secret; a key that it lacks fails a pod.

    Frames need them, which use every tool; tasks of kind spark have grants.
    """
    if SPARK_LANE not in config.lanes:
        return {}
    keys = (*_SECRET_KEYS, _SEAL_KEY) if config.payload_seal_key else _SECRET_KEYS
    return {f"{PREFIX}{key.upper().replace('-', '_')}": key for key in keys}


def build_code_limits(config: Settings) -> code_process.CodeLimits:
    """Read what the code of Spark tasks may use: as much as that of python tasks."""
    limits = build_python_limits(config)
    return code_process.CodeLimits(
        processes_max=config.spark_jobs_max,
        memory_bytes=limits.memory_bytes,
        files_max=limits.files_max,
        threads_max=limits.threads_max,
        file_bytes=limits.file_bytes,
        folders=config.task_folders,
        executor_python=config.spark_python or sys.executable,
    )


def build_spark_limits(config: Settings) -> "spark_tool.SparkLimits":
    """Read what Spark tasks may do."""
    return spark_tool.SparkLimits(
        store_url=config.payload_url,
        master=config.spark_master,
        shown_master=show_address(config.spark_master),
        is_code_allowed=config.spark_code_allowed,
    )


def build_grant_options(config: Settings, folder: Path) -> "grant_maker.GrantOptions":
    """Read how executors get keys; renewed ones are in a `folder` of their own."""
    return grant_maker.GrantOptions(
        store=StoreLogin(
            url=config.payload_url,
            access_key=config.payload_access_key,
            secret_key=config.payload_secret_key,
            seal_key=config.payload_seal_key,
            seal_file=config.payload_seal_file,
        ),
        folder=folder / "grants",
        is_near=config.spark_master.startswith("local"),
        mode=config.spark_keys,
    )


def _build_executor_keys(config: Settings) -> ExecutorKeys:
    return ExecutorKeys(
        payload_access_key=config.payload_access_key,
        payload_secret_key=config.payload_secret_key,
        payload_seal_key=config.payload_seal_key,
        payload_seal_file=config.payload_seal_file,
        secret_key=config.secret_key,
    )


def build_python_limits(config: Settings) -> python_tool.PythonLimits:
    """Read what user code may use."""
    return python_tool.PythonLimits(
        processes_max=config.python_processes_max,
        memory_bytes=config.python_memory_bytes,
        has_network=config.python_network,
        is_network_by_task=config.python_network_by_task,
    )


def build_environment_options(config: Settings) -> environments.EnvironmentOptions:
    """Read which packages tasks may require."""
    return environments.EnvironmentOptions(
        policy=config.python_requirements,
        index=config.python_index,
        links=config.python_links,
        search_path=read_inherited_environ()["PATH"],
        count_max=config.python_environments_max,
        bytes_max=config.python_environment_bytes_max,
    )


def build_container_limits(config: Settings) -> ContainerLimits:
    """Read what containers may be and use."""
    return ContainerLimits(
        images=config.container_images,
        containers_max=config.containers_max,
        is_network_by_task=config.container_network_by_task,
        user=config.container_user,
        memory_bytes=min(config.container_memory_bytes, config.container_memory_bytes_max),
        memory_bytes_max=config.container_memory_bytes_max,
        cpus=min(config.container_cpus, config.container_cpus_max),
        cpus_max=config.container_cpus_max,
        collected_bytes_max=config.workspace_bytes_max,
        namespace=config.container_namespace,
        accounts=config.container_accounts,
    )


def open_container_runtime(config: Settings) -> ContainerRuntime | None:
    """Choose where containers run; None: nowhere."""
    match config.containers:
        case "docker":
            return DockerRuntime(DockerApi(config.docker_host), network=config.container_network)
        case "kubernetes":
            folder = Path(config.kubernetes_account_folder)
            return KubernetesRuntime(
                KubernetesApi(config.kubernetes_api, account_folder=folder),
                namespace=config.container_namespace,
                worker_pod=WorkerPod(name=config.container_pod, uid=config.container_pod_uid),
            )
        case "none":
            return None
        case _:
            assert_never(config.containers)


def build_shell_limits(config: Settings) -> shell.ShellLimits:
    """Read what shell scripts may use."""
    return shell.ShellLimits(
        is_allowed=config.shell_allowed,
        scripts_max=config.shell_scripts_max,
        output_bytes_max=config.shell_output_bytes_max,
        memory_bytes=config.shell_memory_bytes,
        environ=read_inherited_environ(),
    )


log = structlog.get_logger(__name__)


class TierMetrics:
    """Counts what the reader tells."""

    def note_read(self, tier: TierName, *, is_hit: bool, count_bytes: int) -> None:
        """Note that a tier was asked, and how many bytes it gave."""
        outcome = "hit" if is_hit else "miss"
        instruments.add_to_counter(
            names.STORAGE_READS, labels={names.TIER: tier.value, names.OUTCOME: outcome}
        )
        if count_bytes:
            labels = {names.TIER: tier.value, names.OPERATION: "read"}
            instruments.add_to_counter(names.PAYLOAD_BYTES, count_bytes, labels=labels)

    def note_resolution(self, tier: TierName, *, duration_s: float) -> None:
        """Note how long it took to read content, and which tier had it."""
        instruments.record_measurement(
            names.REFERENCE_RESOLVE_DURATION, duration_s, labels={names.TIER: tier.value}
        )

    def note_copy(self, tier: TierName, *, is_kept: bool, used_bytes: int) -> None:
        """Note that a tier was offered a copy, and how many bytes it holds now."""
        outcome = "kept" if is_kept else "refused"
        instruments.add_to_counter(
            names.STORAGE_ADMISSIONS, labels={names.TIER: tier.value, names.OUTCOME: outcome}
        )
        instruments.set_gauge(names.STORAGE_TIER_BYTES, used_bytes, labels={names.TIER: tier.value})

    def note_sweep(self, reason: str, segments: int) -> None:
        """Note that a sweep removed segments."""
        instruments.add_to_counter(names.STORAGE_SWEPT, segments, labels={names.REASON: reason})


@asynccontextmanager
async def open_tiers(
    config: Settings, payloads: Payloads, clock: Clock
) -> AsyncIterator[TieredPayloads]:
    """Put the tiers that the settings want in front of a store; sweep as long as the block runs.

    A tier that cannot be opened is left out, with a warning: the store has everything. Raises
    `StorageMisconfigured` where the settings contradict each other.
    """
    metrics, stop = TierMetrics(), asyncio.Event()
    disk = await asyncio.to_thread(_open_disk_tier, config)
    async with AsyncExitStack() as stack:
        shared = _open_shared_tier(config, clock)
        if shared is not None:
            stack.callback(shared.close)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            stack.callback(stop.set)
            _record_sweep(await asyncio.to_thread(shared.sweep_node), shared, metrics)
            tasks.create_task(
                loop.run_every(
                    config.shared_sweep_s,
                    lambda: _tend_shared_tier(shared, metrics, config.shared_sweep_s),
                    stop=stop,
                    name="shared sweep",
                )
            )
        yield TieredPayloads(payloads, watch=metrics, shared=shared, disk=disk)


async def _tend_shared_tier(shared: SharedTier, metrics: TierMetrics, interval_s: float) -> None:
    thread = await asyncio.to_thread(lambda: shared.tend_segments(interval_s=interval_s))
    _record_sweep(thread, shared, metrics)


def _record_sweep(gone: Counter[str], shared: SharedTier, metrics: TierMetrics) -> None:
    for reason, segments in gone.items():
        metrics.note_sweep(reason, segments)
    used = shared.used_bytes()
    instruments.set_gauge(names.STORAGE_TIER_BYTES, used, labels={names.TIER: shared.name.value})


def _open_shared_tier(config: Settings, clock: Clock) -> SharedTier | None:
    if not config.shared_bytes:
        return None
    try:
        return SharedTier(
            segment_directory.open_segment_directory(
                Path(config.shared_directory), store_url=config.payload_url
            ),
            bytes_max=config.shared_bytes,
            lease_s=config.lease_s,
            clock=clock,
        )
    except SegmentDirectoryRefused as problem:
        log.warning("shared memory is not used", reason=str(problem))
        return None


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


def _open_disk_tier(config: Settings) -> DiskTier | None:
    if not config.disk_cache_bytes:
        return None
    if not config.disk_cache_directory:
        raise StorageMisconfigured(
            "DISK_CACHE_BYTES wants a disk cache: say where, with DISK_CACHE_DIRECTORY"
        )
    try:
        return DiskTier(
            Path(config.disk_cache_directory),
            store_url=config.payload_url,
            bytes_max=config.disk_cache_bytes,
        )
    except SegmentDirectoryRefused as problem:
        log.warning("the disk cache is not used", reason=str(problem))
        return None
