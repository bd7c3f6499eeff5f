"""Every knob of the worker. Variables are NOETL_WORKER_<FIELD>."""

import os
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from noetl_chassis import settings
from noetl_contracts.commands import DEFAULT_POOL
from noetl_contracts.ids import SHARD_COUNT_DEFAULT

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
    shard_count: Annotated[int, Meta(ge=1, le=1024)] = SHARD_COUNT_DEFAULT
    # The ack wait of the pool's consumer: how long a dead worker goes unnoticed.
    lease_s: Seconds = 30.0
    # Commands at once; a slot is one command, whatever the rows that it runs.
    commands_max: Count = 64
    # One fetch takes few, so that a pool's workers share what is waiting.
    fetch_messages_max: Count = 8
    fetch_wait_s: Seconds = 2.0
    # How long each server may take to answer at the start.
    connect_s: Seconds = 30.0
    # Frames may finish for so long after SIGTERM; then they are given back.
    drain_s: Seconds = 20.0
    # The planner's address as others see it: answers to submitted work are sent there.
    callback_url: str = "http://127.0.0.1:8080"
    # Addresses beyond the public ones that the http tool may reach: hosts, networks, each :port.
    http_allow: tuple[str, ...] = ()
    http_connections_max: Count = 512
    http_response_bytes_max: Annotated[int, Meta(ge=1024)] = 64 * 1024 * 1024
    # Connections per credential of a target database.
    postgres_connections_max: Annotated[int, Meta(ge=1, le=1000)] = 16
    # Started when they are first needed; each runs one call at a time.
    python_processes_max: Annotated[int, Meta(ge=1, le=256)] = 4
    python_memory_bytes: Annotated[int, Meta(ge=64 * 1024**2)] = 2 * 1024**3
    # Whether user code may reach the network; where the system cannot forbid it, it may anyway.
    python_network: bool = False
    # Shell tasks run whatever their author writes, as this worker's user.
    shell_allowed: bool = False
    shell_scripts_max: Annotated[int, Meta(ge=1, le=256)] = 8
    shell_output_bytes_max: Annotated[int, Meta(ge=1024)] = 16 * 1024 * 1024
    shell_memory_bytes: Annotated[int, Meta(ge=64 * 1024**2)] = 4 * 1024**3
    # Where tasks may keep files; empty: a temporary directory that ends with the worker.
    # Workers of one pool share it, or the database of an execution is not the same for all steps.
    work_directory: str = ""
    # Where `script` with a file finds it; empty: no scripts from files.
    script_directory: str = ""
    # Where container tasks run: this release connects to no cluster.
    kubernetes: Literal["none"] = "none"
    # Per open DuckDB database; its statements spill nothing to disk.
    duckdb_memory_bytes: Annotated[int, Meta(ge=64 * 1024**2)] = 512 * 1024**2
    duckdb_threads: Annotated[int, Meta(ge=1, le=256)] = 2
    duckdb_databases_max: Annotated[int, Meta(ge=1, le=256)] = 4
    # Names of variables that templates may read as `env`; also set as NOETL_TEMPLATE_ENV.
    template_env: dict[str, str] = msgspec.field(default_factory=dict)
    # Names of variables that keychain entries with `provider: env` may read.
    secret_env: dict[str, str] = msgspec.field(default_factory=dict)
    # Decoded payloads kept in memory between uses.
    payload_memory_bytes: Annotated[int, Meta(ge=0)] = 64 * 1024 * 1024


def inherited() -> dict[str, str]:
    """Read the variables that shell scripts see besides their own, once."""
    found = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ
    }
    return {"PATH": "/usr/bin:/bin", **found}


def load() -> Settings:
    """Read the process environment, once."""
    return settings.load(Settings, prefix=PREFIX, environ=os.environ)
