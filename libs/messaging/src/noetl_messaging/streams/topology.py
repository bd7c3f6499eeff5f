"""Streams and consumers, declared once, as values."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct, structs

from noetl_contracts import subjects
from noetl_contracts.commands import command_work, worker_pools
from noetl_contracts.ids import SHARD_COUNT_DEFAULT
from noetl_messaging.streams.ports import MESSAGE_BYTES_MAX

INGEST = "NOETL_INGEST"
EVENTS = "NOETL_EVENTS"
COMMANDS = "NOETL_COMMANDS"
DEAD_LETTERS = "NOETL_DLQ"
TRIGGERS = "NOETL_TRIGGERS"
ADVISORIES = "NOETL_ADVISORIES"
LIMITS = "NOETL_LIMITS"

# Older servers lose streams when they are killed.
SERVER_MIN = (2, 12)
ADVISORY_SUBJECT = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES"
REAPER_CONSUMER = "reaper"
# All planners share it: each message is handed to one of them.
TRIGGER_CONSUMER = "triggers"

# Streams whose messages are rescued when their deliveries are used up.
OF_WORK = (INGEST, EVENTS, COMMANDS, TRIGGERS)

DUPLICATE_WINDOW_S = 120.0
# Headers travel within a message's size; a dead letter carries more of them.
HEADER_BYTES_MAX = 8 * 1024
LEASE_S_DEFAULT = 30.0
# Facts and events are settled within one transaction; a reader that dies is noticed this soon.
SETTLE_WAIT_S = 5.0
# Deliveries are given up only after an outage far longer than any restart; every one of them
# is then kept as a dead letter, and the ledger's own repair does not depend on them.
DELIVERIES_MAX = 1000
COMMAND_DELIVERIES_MAX = 100
ACK_PENDING_MAX = 2048
# A message that waits for a place of its trigger is handed over again every few seconds, for days.
TRIGGER_DELIVERIES_MAX = 1_000_000
TRIGGERS_PENDING_MAX = 10_000

_MIB = 1024 * 1024
_DAY_S = 24 * 3600.0
_WEEK_S = 7 * 24 * 3600.0


class Retention(StrEnum):
    """When a stream lets go of a message."""

    WORK_QUEUE = "workqueue"
    LIMITS = "limits"


class StreamSpec(Struct, frozen=True, kw_only=True):
    """One stream on file storage; a protected one refuses deletion and purging by anyone.

    A work queue refuses messages when it is full, so that pressure is seen where it arises; the
    others let the oldest go, which the ledger still has.
    """

    name: str
    subjects: tuple[str, ...]
    retention: Retention
    bytes_max: int
    age_s_max: float = 0.0
    message_bytes_max: int = MESSAGE_BYTES_MAX + HEADER_BYTES_MAX
    duplicate_window_s: float = DUPLICATE_WINDOW_S
    is_protected: bool = True
    # Of one subject, the oldest let go; 0: as many as there are.
    subject_messages_max: int = 0


class ConsumerSpec(Struct, frozen=True, kw_only=True):
    """One durable pull consumer with explicit settlement."""

    stream: str
    name: str
    filters: tuple[str, ...] = ()
    ack_wait_s: float = SETTLE_WAIT_S
    deliveries_max: int = DELIVERIES_MAX
    ack_pending_max: int = ACK_PENDING_MAX


class Topology(Struct, frozen=True, kw_only=True):
    """All that must exist on the server."""

    streams: tuple[StreamSpec, ...]
    consumers: tuple[ConsumerSpec, ...]


STREAMS = (
    StreamSpec(
        name=INGEST,
        subjects=(f"{subjects.INGEST}.>",),
        retention=Retention.WORK_QUEUE,
        bytes_max=512 * _MIB,
    ),
    StreamSpec(
        name=EVENTS,
        subjects=(f"{subjects.EVENTS}.>",),
        retention=Retention.LIMITS,
        bytes_max=1024 * _MIB,
        age_s_max=_WEEK_S,
    ),
    StreamSpec(
        name=COMMANDS,
        subjects=(f"{subjects.COMMANDS}.>",),
        retention=Retention.WORK_QUEUE,
        bytes_max=512 * _MIB,
    ),
    # Messages of others that start playbooks; when nobody takes them, publishers are refused.
    StreamSpec(
        name=TRIGGERS,
        subjects=(f"{subjects.TRIGGERS}.>",),
        retention=Retention.WORK_QUEUE,
        bytes_max=128 * _MIB,
    ),
    # A letter goes away when it is sent again, so this stream permits deletion.
    StreamSpec(
        name=DEAD_LETTERS,
        subjects=(f"{subjects.DEAD_LETTERS}.>",),
        retention=Retention.LIMITS,
        bytes_max=128 * _MIB,
        is_protected=False,
    ),
    # One message for each rate limit in use: losing it fills an allowance, no more.
    StreamSpec(
        name=LIMITS,
        subjects=(f"{subjects.LIMITS}.>",),
        retention=Retention.LIMITS,
        bytes_max=16 * _MIB,
        age_s_max=2 * _DAY_S,
        message_bytes_max=4096,
        is_protected=False,
        subject_messages_max=1,
    ),
    StreamSpec(
        name=ADVISORIES,
        subjects=tuple(f"{ADVISORY_SUBJECT}.{name}.>" for name in OF_WORK),
        retention=Retention.WORK_QUEUE,
        bytes_max=16 * _MIB,
        is_protected=False,
    ),
)


def build_planner_consumer(shard: int, tenant_id: str | None = None) -> str:
    """Name the consumer of a shard's facts; with a tenant, of those in its own share."""
    return f"planner-{shard}" + _build_mark(tenant_id)


def build_projector_consumer(*, index: int, count: int) -> str:
    """Name the consumer of one projector's events."""
    return f"projector-{index}-of-{count}"


def build_worker_consumer(pool: str, lane: str, tenant_id: str | None = None) -> str:
    """Name the consumer of the commands of a pool's lane; with a tenant, of its own share."""
    return f"worker-{pool}-{lane}" + _build_mark(tenant_id)


def _build_mark(tenant_id: str | None) -> str:
    return "" if tenant_id is None else subjects.build_tenant_mark(tenant_id)


def list_worker_consumers(
    pool: str, host: str = command_work.IO_LANE, tenant_id: str | None = None
) -> tuple[str, ...]:
    """Name the consumers of a host's lanes in a pool, the most urgent first."""
    worker_consumers = worker_pools.IO_LANES if host == command_work.IO_LANE else (host,)
    return tuple(build_worker_consumer(pool, lane, tenant_id) for lane in worker_consumers)


def find_pool(consumer: str) -> tuple[str, str] | None:
    """Return the pool and the lane that a consumer of commands serves, or None."""
    consumer = subjects.strip_tenant_mark(consumer)
    for lane in worker_pools.LANES:
        pool = consumer.removeprefix("worker-").removesuffix(f"-{lane}")
        if consumer == build_worker_consumer(pool, lane):
            return pool, lane
    return None


def list_projector_shards(*, index: int, count: int, shard_count: int) -> tuple[int, ...]:
    """List the shards that one of `count` projectors keeps."""
    return tuple(range(index, shard_count, count))


def declare_consumers(
    *,
    shard_count: int = SHARD_COUNT_DEFAULT,
    projector_count: int = 1,
    pools: Sequence[str] = (command_work.DEFAULT_POOL,),
    tenants: Iterable[str] = (),
    lease_s: float = LEASE_S_DEFAULT,
) -> tuple[ConsumerSpec, ...]:
    """Declare every durable consumer; tenants of their own share get their own."""
    shares = (None, *tenants)
    planners = [
        ConsumerSpec(
            stream=INGEST,
            name=build_planner_consumer(shard, tenant_id),
            filters=(subjects.build_ingest_filter(shard, tenant_id),),
        )
        for tenant_id in shares
        for shard in range(shard_count)
    ]
    projectors = [
        ConsumerSpec(
            stream=EVENTS,
            name=build_projector_consumer(index=index, count=projector_count),
            filters=tuple(
                subjects.build_events_filter(shard)
                for shard in list_projector_shards(
                    index=index, count=projector_count, shard_count=shard_count
                )
            ),
        )
        for index in range(projector_count)
    ]
    workers = [
        ConsumerSpec(
            stream=COMMANDS,
            name=build_worker_consumer(pool, lane, tenant_id),
            filters=(_build_commands_filter(pool, lane, tenant_id),),
            ack_wait_s=lease_s,
            deliveries_max=COMMAND_DELIVERIES_MAX,
        )
        for tenant_id in shares
        for pool in pools
        for lane in worker_pools.LANES
    ]
    reaper = ConsumerSpec(stream=ADVISORIES, name=REAPER_CONSUMER, ack_wait_s=30.0)
    triggers = ConsumerSpec(
        stream=TRIGGERS,
        name=TRIGGER_CONSUMER,
        ack_wait_s=30.0,
        deliveries_max=TRIGGER_DELIVERIES_MAX,
        ack_pending_max=TRIGGERS_PENDING_MAX,
    )
    return (*planners, *projectors, *workers, reaper, triggers)


def _build_commands_filter(pool: str, lane: str, tenant_id: str | None) -> str:
    if tenant_id is None:
        return subjects.build_command_filter(pool, lane)
    return subjects.build_own_share_filter(pool, lane, tenant_id)


def share_default_pool(topology: Topology) -> Topology:
    """Let the default pool's consumers take the commands of every pool: one process serves all."""
    filters = {
        build_worker_consumer(command_work.DEFAULT_POOL, lane): (subjects.build_lane_filter(lane),)
        for lane in worker_pools.LANES
    }
    shared_consumers = [
        structs.replace(spec, filters=filters.get(spec.name, spec.filters))
        for spec in topology.consumers
    ]
    return structs.replace(topology, consumers=tuple(shared_consumers))


def declare_topology(
    *,
    shard_count: int = SHARD_COUNT_DEFAULT,
    projector_count: int = 1,
    pools: Sequence[str] = (command_work.DEFAULT_POOL,),
    tenants: Iterable[str] = (),
    lease_s: float = LEASE_S_DEFAULT,
) -> Topology:
    """Declare all that must exist on the server."""
    return Topology(
        streams=STREAMS,
        consumers=declare_consumers(
            shard_count=shard_count,
            projector_count=projector_count,
            pools=pools,
            tenants=tenants,
            lease_s=lease_s,
        ),
    )
