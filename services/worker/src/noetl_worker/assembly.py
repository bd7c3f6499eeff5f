"""From opened adapters and settings to a worker that can run."""

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from noetl_chassis import identity
from noetl_chassis.clock import Clock
from noetl_chassis.settings import locality_of
from noetl_contracts import locators
from noetl_contracts.commands import IO_LANE, SPARK_LANE
from noetl_contracts.ids import OrganizationId, TenantId, WorkerId
from noetl_messaging.ports import Consumer, DeadLetters, Hints, Publisher, Registers
from noetl_storage.payloads.buckets import open_buckets
from noetl_storage.ports import Buckets, Payloads
from noetl_worker.domain import egress
from noetl_worker.domain.callbacks import Callbacks
from noetl_worker.domain.masking import Mask
from noetl_worker.holding import Halts
from noetl_worker.intake import OTHERS, Intake, SharedIntake
from noetl_worker.lanes.io import IoLane, Lane
from noetl_worker.lanes.pacing import Pacer
from noetl_worker.lanes.progress_hints import tell_progress
from noetl_worker.lanes.waves import Limits, Waves
from noetl_worker.offers import Offers
from noetl_worker.reporting import Desk
from noetl_worker.service import Speaker, Worker
from noetl_worker.settings import (
    PREFIX,
    ExecutorKeys,
    Settings,
    adopt,
    inherited,
    java_environ,
    weights_of,
)
from noetl_worker.spark.kubernetes import Kubernetes
from noetl_worker.spark.starting import Options, parse_conf
from noetl_worker.stores import Remembered
from noetl_worker.tools import (
    Tools,
    duckdb_session,
    http,
    postgres_pool,
    python,
    shell,
    spark,
)
from noetl_worker.user_python import environments
from noetl_worker.workspace import checkout

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
    mask: Mask
    clock: Clock


def build(
    adapters: Adapters,
    config: Settings,
    *,
    instance: str,
    lane: str = IO_LANE,
    entry: Callable[..., Any] | None = None,
) -> Worker:
    """Put the worker of one lane together; with `entry` the spark lane's frames run in waves."""
    worker_id = WorkerId(instance)
    tenant_id, organization_id = TenantId(config.tenant_id), OrganizationId(config.organization_id)
    locality = locality_of(config)
    desk = Desk(
        publisher=adapters.publisher,
        worker_id=worker_id,
        shard_count=config.shard_count,
        mask=adapters.mask,
        clock=adapters.clock,
        locality=locality,
        max_distance=config.max_distance,
        locator=locators.worker(tenant_id, organization_id, locality, worker_id),
    )
    is_spark = lane == SPARK_LANE
    commands_max = config.spark_frames_max if is_spark else config.commands_max
    host = IoLane(
        Lane(
            tools=adapters.tools,
            payloads=adapters.payloads,
            remembered=Remembered(bytes_max=config.payload_memory_bytes),
            desk=desk,
            mask=adapters.mask,
            hints=adapters.hints,
            dead_letters=adapters.dead_letters,
            pool=config.pool,
            lease_s=config.lease_s,
            commands_max=commands_max,
            halts=Halts(adapters.hints),
            pacer=Pacer(registers=adapters.registers, clock=adapters.clock),
            callbacks=Callbacks(base_url=config.callback_url, secret=config.secret_key),
            backend=backend_of(config),
            waves=None if entry is None or not is_spark else _waves(adapters, config, desk, entry),
            held_wait_s=config.held_wait_s,
        )
    )
    return Worker(
        intake=_intake(adapters, config),
        lane=host,
        commands_max=commands_max,
        messages_max=config.spark_wave_frames_max if is_spark else config.fetch_messages_max,
        wait_s=min(config.fetch_wait_s, config.lease_s / _WAITS_PER_LEASE),
        speaker=_speaker(adapters, config, desk, lane),
    )


def _intake(adapters: Adapters, config: Settings) -> Intake | SharedIntake:
    others = Intake(adapters.consumers)
    if not adapters.shares:
        return others
    own = {tenant_id: Intake(lanes) for tenant_id, lanes in adapters.shares.items()}
    return SharedIntake({OTHERS: others, **own}, weights=weights_of(config))


def _speaker(adapters: Adapters, config: Settings, desk: Desk, lane: str) -> Speaker:
    """Let each lane of a process say what it has room for, and hear what it is offered."""
    return Speaker(
        offers=Offers(desk=desk, hints=adapters.hints),
        worker_id=desk.worker_id,
        pool=config.pool,
        lanes=(lane,),
        locality=locality_of(config),
        max_distance=config.max_distance,
    )


def backend_of(config: Settings) -> str:
    """Name the payload store as playbooks do."""
    return _BACKENDS.get(config.payload_url.partition(":")[0], "disk")


def _waves(adapters: Adapters, config: Settings, desk: Desk, entry: Callable[..., Any]) -> Waves:
    return Waves(
        sparks=adapters.tools.sparks,
        entry=entry,
        payloads=adapters.payloads,
        worker_id=desk.worker_id,
        clock=adapters.clock,
        limits=Limits(
            frames_max=config.spark_wave_frames_max,
            waves_max=config.spark_waves_max,
            parts_max=config.spark_partitions_max,
        ),
        tell_progress=partial(tell_progress, adapters.hints),
    )


def http_limits(config: Settings) -> http.Limits:
    """Read what the http tool may use."""
    return http.Limits(
        allowances=tuple(egress.parse(entry) for entry in config.http_allow),
        connections_max=config.http_connections_max,
        response_bytes_max=config.http_response_bytes_max,
        sends_traceparent=config.send_traceparent,
    )


def open_bucket_store() -> AbstractAsyncContextManager[Buckets]:
    """Hold the clients of buckets that playbooks name."""
    return open_buckets()


def postgres_room(config: Settings) -> postgres_pool.Room:
    """Read how many connections a credential has."""
    return postgres_pool.Room(
        most=config.postgres_connections_max,
        soon=config.postgres_connections_soon,
        wait_s=config.postgres_wait_s,
    )


def workspace_limits(config: Settings) -> checkout.Limits:
    """Read how many files an execution keeps."""
    return checkout.Limits(
        files_max=config.workspace_files_max, bytes_max=config.workspace_bytes_max
    )


def duckdb_limits(config: Settings) -> duckdb_session.Limits:
    """Read what a DuckDB database may use."""
    return duckdb_session.Limits(
        memory_bytes=config.duckdb_memory_bytes,
        threads=config.duckdb_threads,
        databases_max=config.duckdb_databases_max,
    )


def spark_options(config: Settings, root: Path) -> Options:
    """Read what a Spark session is started with; its files have a folder of their own."""
    return Options(
        master=config.spark_master,
        folder=root / f"spark-{identity.token()[:12]}",
        adopt=lambda variables: adopt({**variables, **_keys_of(config).as_environ()}),
        environ=java_environ(),
        conf=parse_conf(config.spark_conf),
        python=config.spark_python or sys.executable,
        memory_bytes=config.spark_memory_bytes,
        jobs_max=config.spark_jobs_max,
        reach_s=config.spark_reach_s,
        kubernetes=_kubernetes(config),
    )


def _kubernetes(config: Settings) -> Kubernetes:
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
        variables={
            f"{PREFIX}PAYLOAD_URL": config.payload_url,
            f"{PREFIX}POOL": config.pool,
            f"{PREFIX}TENANT_ID": config.tenant_id,
            f"{PREFIX}ORGANIZATION_ID": config.organization_id,
            f"{PREFIX}SHARD_COUNT": str(config.shard_count),
            f"{PREFIX}HTTP_ALLOW": ",".join(config.http_allow),
        },
        secret_keys=_secret_keys(config),
    )


def _secret_keys(config: Settings) -> dict[str, str]:
    """Name the variables that executors get from the Secret; a key that it lacks fails a pod."""
    keys = (*_SECRET_KEYS, _SEAL_KEY) if config.payload_seal_key else _SECRET_KEYS
    return {f"{PREFIX}{key.upper().replace('-', '_')}": key for key in keys}


def spark_limits(config: Settings) -> spark.Limits:
    """Read what Spark tasks may do."""
    return spark.Limits(
        store_url=config.payload_url,
        master=config.spark_master,
        is_code_allowed=config.spark_code_allowed,
    )


def _keys_of(config: Settings) -> ExecutorKeys:
    return ExecutorKeys(
        payload_access_key=config.payload_access_key,
        payload_secret_key=config.payload_secret_key,
        payload_seal_key=config.payload_seal_key,
        payload_seal_file=config.payload_seal_file,
        secret_key=config.secret_key,
    )


def python_limits(config: Settings) -> python.Limits:
    """Read what user code may use."""
    return python.Limits(
        processes_max=config.python_processes_max,
        memory_bytes=config.python_memory_bytes,
        has_network=config.python_network,
        is_network_by_task=config.python_network_by_task,
    )


def environment_options(config: Settings) -> environments.Options:
    """Read which packages tasks may require."""
    return environments.Options(
        policy=config.python_requirements,
        index=config.python_index,
        links=config.python_links,
        search_path=inherited()["PATH"],
        count_max=config.python_environments_max,
        bytes_max=config.python_environment_bytes_max,
    )


def shell_limits(config: Settings) -> shell.Limits:
    """Read what shell scripts may use."""
    return shell.Limits(
        is_allowed=config.shell_allowed,
        scripts_max=config.shell_scripts_max,
        output_bytes_max=config.shell_output_bytes_max,
        memory_bytes=config.shell_memory_bytes,
        environ=inherited(),
    )
