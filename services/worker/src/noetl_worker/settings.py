"""Settings of the worker. Variables are NOETL_WORKER_<FIELD>."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from noetl_chassis import settings
from noetl_contracts import subjects
from noetl_contracts.commands.command_work import DEFAULT_POOL
from noetl_contracts.ids import SHARD_COUNT_DEFAULT, ShardCount

PREFIX = "NOETL_WORKER_"

Count = Annotated[int, Meta(ge=1, le=100_000)]
Seconds = Annotated[float, Meta(gt=0)]


class Settings(settings.ServiceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field without a default must be set."""

    payload_url: str
    payload_access_key: str = ""
    payload_secret_key: str = ""
    # Keys that seal payloads, <id>:<32 bytes in base64>, newest first; or a file with one a line.
    payload_seal_key: str = ""
    payload_seal_file: str = ""
    # Opens sealed credentials: 32 bytes in base64.
    secret_key: str
    pool: str = DEFAULT_POOL
    # Tenants with their own share of the pool: tenant, or tenant=weight. The rest share one.
    tenants: tuple[str, ...] = ()
    # Whether it takes the commands of these tenants alone: what a user of the broker may that
    # `noetl worker enroll --tenant` made.
    only_tenants: bool = False
    # How far the inputs may be of commands that this worker is offered; its pool's queue may still
    # bring others.
    max_distance: Literal["node", "zone", "region", "cluster", "any"] = "any"
    shard_count: ShardCount = SHARD_COUNT_DEFAULT
    # The ack wait of the pool's consumer: how long a dead worker goes unnoticed.
    lease_s: Seconds = 30.0
    # Commands at once; a slot is one command, for any number of rows.
    commands_max: Count = 64
    # One fetch takes few, so that a pool's workers share what is waiting.
    fetch_messages_max: Count = 8
    # At most a fifth of `lease_s`, of which it takes away.
    fetch_wait_s: Seconds = 2.0
    # How long each server may take to answer at the start.
    connect_s: Seconds = 30.0
    # Frames may finish for so long after SIGTERM; then they are given back.
    drain_s: Seconds = 20.0
    # Longer waits of tasks (delays, retries) are timers of the planner, and hold no worker.
    held_wait_s: Annotated[float, Meta(ge=0, le=60)] = 5.0
    # The planner's address as others see it: answers to submitted work are sent there.
    callback_url: str = "http://127.0.0.1:8080"
    # Addresses beyond the public ones that the http tool may reach: hosts, networks, each :port.
    http_allow: tuple[str, ...] = ()
    # Ports of this machine on which the platform listens: no http task reaches them.
    http_platform_ports: tuple[int, ...] = ()
    http_connections_max: Count = 512
    http_response_bytes_max: Annotated[int, Meta(ge=1024)] = 64 * 1024 * 1024
    # Whether requests and messages of tasks name the trace that they are a part of.
    send_traceparent: bool = True
    # Connections per credential of a target database: so many as soon as they are wanted, and the
    # more where tasks wait for statements that take long.
    postgres_connections_soon: Annotated[int, Meta(ge=1, le=1000)] = 3
    postgres_connections_max: Annotated[int, Meta(ge=1, le=1000)] = 16
    # How long a task that says nothing else waits for one to become free.
    postgres_wait_s: Seconds = 600.0
    # Started when they are first needed; each runs one call at a time.
    python_processes_max: Annotated[int, Meta(ge=1, le=256)] = 4
    python_memory_bytes: Annotated[int, Meta(ge=64 * 1024**2)] = 2 * 1024**3
    # Whether user code may reach the network; where the system cannot forbid it, it may anyway.
    python_network: bool = False
    # Whether a task may ask for the network itself, with `spec.network: true`.
    python_network_by_task: bool = False
    # Whether `requirements` of a task are installed: not at all, with hashes, or any.
    python_requirements: Literal["refused", "hashed", "any"] = "refused"
    # Where wheels come from: an index (empty: PyPI; none: no index), a folder or page of files.
    python_index: str = ""
    python_links: str = ""
    # How many sets of packages are kept, and how large each may be.
    python_environments_max: Annotated[int, Meta(ge=1, le=1000)] = 16
    python_environment_bytes_max: Annotated[int, Meta(ge=1024**2)] = 2 * 1024**3
    # Shell tasks run any command that their author writes, as this worker's user.
    shell_allowed: bool = False
    shell_scripts_max: Annotated[int, Meta(ge=1, le=256)] = 8
    shell_output_bytes_max: Annotated[int, Meta(ge=1024)] = 16 * 1024 * 1024
    shell_memory_bytes: Annotated[int, Meta(ge=64 * 1024**2)] = 4 * 1024**3
    # Folders that python and shell tasks may read besides those of the system and their own.
    task_folders: tuple[str, ...] = ()
    # Files of organizations, which outlive executions, and the locks that workers respect; empty:
    # none such, and tasks of other workers that change one file are told of the conflict.
    work_directory: str = ""
    # The files of an execution, which travel between workers through the payload store.
    workspace_files_max: Annotated[int, Meta(ge=1)] = 10_000
    workspace_bytes_max: Annotated[int, Meta(ge=1)] = 64 * 1024**3
    # Where `script` with a file finds it; empty: no scripts from files.
    script_directory: str = ""
    # Where container tasks run: on the Docker of `docker_host`, or as Jobs of Kubernetes.
    containers: Literal["none", "docker", "kubernetes"] = "none"
    # What `containers` was called; its only value says nothing.
    kubernetes: Literal["none"] = "none"
    # Docker's API: unix:///path or tcp://host:port. Who may use it is root of its machine.
    docker_host: Annotated[str, Meta(pattern=r"^(unix:///|(tcp|http)://)[^\s]+$")] = (
        "unix:///var/run/docker.sock"
    )
    # The API of Kubernetes, and the folder with `token` and `ca.crt`: the pod's own account.
    kubernetes_api: Annotated[str, Meta(pattern=r"^https?://[^\s/]+$")] = (
        "https://kubernetes.default.svc"
    )
    kubernetes_account_folder: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    # The namespace of Jobs; empty: that of the account, and they go when the worker's pod goes.
    container_namespace: str = ""
    container_pod: str = ""
    container_pod_uid: str = ""
    # Images that tasks may run: *, name:*, registry/*. Empty: none.
    container_images: tuple[str, ...] = ()
    # Accounts of Kubernetes that tasks may name.
    container_accounts: tuple[str, ...] = ()
    # Whether a task may ask for the network with `spec.network: true`; Docker's network for it.
    container_network_by_task: bool = False
    container_network: str = "bridge"
    # As whom containers run, uid:gid; empty: as their image says.
    container_user: Annotated[str, Meta(pattern=r"^([0-9]+:[0-9]+)?$")] = "10001:10001"
    # What a container has that says nothing else, and the most that a task may ask for.
    container_memory_bytes: Annotated[int, Meta(ge=8 * 1024**2)] = 512 * 1024**2
    container_memory_bytes_max: Annotated[int, Meta(ge=8 * 1024**2)] = 4 * 1024**3
    container_cpus: Annotated[float, Meta(ge=0.01, le=1024)] = 1.0
    container_cpus_max: Annotated[float, Meta(ge=0.01, le=1024)] = 4.0
    # Containers of this worker at once.
    containers_max: Annotated[int, Meta(ge=1, le=1000)] = 8
    # Per open DuckDB database; its statements spill nothing to disk.
    duckdb_memory_bytes: Annotated[int, Meta(ge=64 * 1024**2)] = 512 * 1024**2
    duckdb_threads: Annotated[int, Meta(ge=1, le=256)] = 2
    duckdb_databases_max: Annotated[int, Meta(ge=1, le=256)] = 4
    # Where Spark runs: local[cores], or a cluster's spark://host:port, k8s://, sc://host:port.
    spark_master: Annotated[
        str, Meta(pattern=r"^(local(\[[0-9*,]+\])?|(spark|sc|k8s)://[^\s]+)$")
    ] = "local[2]"
    # How long a cluster's address may take to answer before a session is started there.
    spark_reach_s: Annotated[float, Meta(gt=0, le=600)] = 10.0
    # Settings of Spark itself, no secrets: spark.name=value, separated by semicolons.
    spark_conf: str = ""
    # The Python of executors on other machines; empty: this one's path.
    spark_python: str = ""
    # With k8s://: the executors' image, where their pods are and as whom they run, how many there
    # are, the Secret that holds their keys, and where they reach this worker.
    spark_image: str = ""
    spark_namespace: str = "default"
    spark_service_account: str = ""
    spark_executors: Annotated[int, Meta(ge=1, le=10_000)] = 2
    spark_secret: str = ""
    spark_driver_host: str = ""
    spark_driver_pod: str = ""
    # The port of the driver; its blocks are at the next one.
    spark_driver_port: Annotated[int, Meta(ge=1, le=65534)] = 7078
    # The driver's heap; a session is started when it is first needed.
    spark_memory_bytes: Annotated[int, Meta(ge=256 * 1024**2)] = 1024**3
    spark_jobs_max: Annotated[int, Meta(ge=1, le=64)] = 8
    # Spark tasks may bring Python and any SQL, which runs as this worker's user.
    spark_code_allowed: bool = False
    # Keys of executors: `scoped` takes short-lived ones of the job's folders alone, `auto` those of
    # the credentials where a store gives no others.
    spark_keys: Literal["auto", "scoped"] = "auto"
    # Spark's own page, on loopback; without it the driver has none.
    spark_ui: bool = False
    # Start the session with the worker, not with the first task that needs it.
    spark_prewarm: bool = False
    # Lanes whose commands this worker takes: io, spark.
    lanes: tuple[Literal["io", "spark"], ...] = ("io", "spark")
    # Frames of the spark lane at once; a wave takes some of them as one Spark job.
    spark_frames_max: Count = 256
    spark_wave_frames_max: Annotated[int, Meta(ge=1, le=4096)] = 64
    spark_waves_max: Annotated[int, Meta(ge=1, le=64)] = 2
    # Partitions of a wave; 0: as many as the cluster runs tasks at once.
    spark_partitions_max: Annotated[int, Meta(ge=0, le=4096)] = 0
    # Names of variables that templates may read as `env`; also set as NOETL_TEMPLATE_ENV.
    template_env: dict[str, str] = msgspec.field(default_factory=dict)
    # Names of variables that keychain entries with `provider: env` may read.
    secret_env: dict[str, str] = msgspec.field(default_factory=dict)
    # The folder whose files keychain entries with `provider: file` may read; empty: none.
    secret_folder: str = ""
    # Decoded payloads kept in memory between uses.
    payload_memory_bytes: Annotated[int, Meta(ge=0)] = 64 * 1024 * 1024
    # Payloads that all workers of a node hold in its shared memory together; 0: none.
    shared_bytes: Annotated[int, Meta(ge=0, le=2**40)] = 256 * 1024 * 1024
    # A memory file system that the workers of a node share.
    shared_directory: str = "/dev/shm"  # noqa: S108 - its own directory in there is refused if open to others
    shared_sweep_s: Seconds = 15.0
    # Payloads kept on a local disk; 0: none, as a store that is itself a directory needs none.
    disk_cache_bytes: Annotated[int, Meta(ge=0)] = 0
    # Must be set where there is a disk cache; workers of a node may share it.
    disk_cache_directory: str = ""


def read_inherited_environ() -> dict[str, str]:
    """Read the variables that shell scripts see besides their own, once."""
    inherited = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ
    }
    return {"PATH": "/usr/bin:/bin", **inherited}


def read_environ() -> dict[str, str]:
    """Read every variable of this process."""
    return dict(os.environ)


def read_java_environ() -> dict[str, str]:
    """Read the variables that say where a Java is."""
    return {name: os.environ[name] for name in ("JAVA_HOME", "PATH") if name in os.environ}


class ExecutorKeys(Struct, frozen=True, kw_only=True):
    """Keys with which Spark's executors open the payload store and credentials."""

    payload_access_key: str = ""
    payload_secret_key: str = ""
    payload_seal_key: str = ""
    payload_seal_file: str = ""
    secret_key: str = ""

    def build_environ(self) -> dict[str, str]:
        """Return the environment variables for executors that this process starts."""
        return {f"{PREFIX}{name.upper()}": value for name, value in asdict(self).items() if value}


def read_executor_keys() -> ExecutorKeys:
    """Read the keys from the environment, inside a Spark executor."""
    names = ExecutorKeys.__struct_fields__
    return ExecutorKeys(**{name: os.environ.get(f"{PREFIX}{name.upper()}", "") for name in names})


def list_own_secrets(config: Settings) -> list[str]:
    """List what no task may show: keys and passwords of this worker, those in files too."""
    file = config.payload_seal_file
    lines = Path(file).read_text("utf-8").split() if file else []
    return [*settings.list_secrets(config), *lines, *(line.rpartition(":")[2] for line in lines)]


def set_variables(variables: Mapping[str, str]) -> None:
    """Set variables that libraries read from this process: Spark's launcher, and Arrow."""
    os.environ.update(variables)


def parse_tenant_weights(config: Settings) -> dict[str, int]:
    """Read how much of the pool each tenant has that has its own share; raises `SettingsError`."""
    try:
        return subjects.parse_tenant_shares(config.tenants)
    except subjects.SharesMalformed as problem:
        raise settings.SettingsError(f"{PREFIX}TENANTS: {problem}") from problem


def load_settings() -> Settings:
    """Read the process environment, once."""
    config = settings.load_settings(Settings, prefix=PREFIX, environ=os.environ)
    shares = parse_tenant_weights(config)
    if config.only_tenants and not shares:
        raise settings.SettingsError(f"{PREFIX}ONLY_TENANTS: name them in {PREFIX}TENANTS")
    return config
