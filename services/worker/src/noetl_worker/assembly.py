"""From opened adapters and settings to a worker that can run."""

from contextlib import AbstractAsyncContextManager

from msgspec import Struct

from noetl_chassis.clock import Clock
from noetl_contracts import locators
from noetl_contracts.ids import OrganizationId, TenantId, WorkerId
from noetl_messaging.ports import Consumer, DeadLetters, Hints, Publisher, Registers
from noetl_storage.payloads.buckets import open_buckets
from noetl_storage.ports import Buckets, Payloads
from noetl_worker.domain import egress
from noetl_worker.domain.callbacks import Callbacks
from noetl_worker.domain.masking import Mask
from noetl_worker.holding import Halts
from noetl_worker.intake import Intake
from noetl_worker.lanes.io import IoLane, Lane
from noetl_worker.lanes.pacing import Pacer
from noetl_worker.reporting import Desk
from noetl_worker.service import Worker
from noetl_worker.settings import Settings, inherited
from noetl_worker.stores import Remembered
from noetl_worker.tools import Tools, duckdb_session, http, python, shell

_BACKENDS = {"memory": "memory", "file": "disk", "s3": "s3"}


class Adapters(Struct, frozen=True, kw_only=True):
    """What a worker reaches the world through."""

    # One for each of `lanes.IO_LANES`, in their order.
    consumers: tuple[Consumer, ...]
    publisher: Publisher
    hints: Hints
    registers: Registers
    dead_letters: DeadLetters
    payloads: Payloads
    tools: Tools
    mask: Mask
    clock: Clock


def build(adapters: Adapters, config: Settings, *, instance: str) -> Worker:
    """Put a worker together."""
    worker_id = WorkerId(instance)
    tenant_id, organization_id = TenantId(config.tenant_id), OrganizationId(config.organization_id)
    desk = Desk(
        publisher=adapters.publisher,
        worker_id=worker_id,
        shard_count=config.shard_count,
        mask=adapters.mask,
        clock=adapters.clock,
        locator=locators.worker(tenant_id, organization_id, {}, worker_id),
    )
    lane = IoLane(
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
            commands_max=config.commands_max,
            halts=Halts(adapters.hints),
            pacer=Pacer(registers=adapters.registers, clock=adapters.clock),
            callbacks=Callbacks(base_url=config.callback_url, secret=config.secret_key),
            backend=_BACKENDS.get(config.payload_url.partition(":")[0], "disk"),
        )
    )
    return Worker(
        intake=Intake(adapters.consumers),
        lane=lane,
        commands_max=config.commands_max,
        messages_max=config.fetch_messages_max,
        wait_s=config.fetch_wait_s,
    )


def http_limits(config: Settings) -> http.Limits:
    """Read what the http tool may use."""
    return http.Limits(
        allowances=tuple(egress.parse(entry) for entry in config.http_allow),
        connections_max=config.http_connections_max,
        response_bytes_max=config.http_response_bytes_max,
    )


def open_bucket_store() -> AbstractAsyncContextManager[Buckets]:
    """Hold the clients of buckets that playbooks name."""
    return open_buckets()


def duckdb_limits(config: Settings) -> duckdb_session.Limits:
    """Read what a DuckDB database may use."""
    return duckdb_session.Limits(
        memory_bytes=config.duckdb_memory_bytes,
        threads=config.duckdb_threads,
        databases_max=config.duckdb_databases_max,
    )


def python_limits(config: Settings) -> python.Limits:
    """Read what user code may use."""
    return python.Limits(
        processes_max=config.python_processes_max,
        memory_bytes=config.python_memory_bytes,
        has_network=config.python_network,
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
