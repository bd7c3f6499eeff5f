"""Creates and updates streams and consumers as declared, and lists differences."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from nats.js import api
from nats.js.errors import APIError, BadRequestError, NotFoundError

from noetl_messaging.jetstream.connection import Connection, translate_errors
from noetl_messaging.jetstream.server_limits import describe_limit
from noetl_messaging.streams.errors import ServerLimitReached, TopologyMismatch
from noetl_messaging.streams.ports import Backlog, QueueSnapshot
from noetl_messaging.streams.topology import ConsumerSpec, Retention, StreamSpec, Topology

# A stream that is made again begins beyond every sequence that its predecessor can have reached:
# a settlement meant for the old stream can then never hit a message of the new one.
SEQUENCE_EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
SEQUENCES_PER_S = 1_000_000
_STREAM_EXISTS = 10058


class JetStreamStreams:
    """Keeps streams and consumers as they are declared."""

    def __init__(
        self,
        connection: Connection,
        topology: Topology,
        *,
        now: Callable[[], datetime],
        replicas: int = 1,
    ) -> None:
        self._connection = connection
        self._now = now
        self._topology = topology
        self._replicas = replicas

    async def ensure_streams(self) -> list[str]:
        """Make what is missing, change what differs; return the names of both.

        Raises `TopologyMismatch`, `ServerLimitReached` or `MessagingUnavailable`.
        """
        changed = [spec.name for spec in self._topology.streams if await self._ensure_stream(spec)]
        for stream in self._topology.streams:
            existing_consumers = await _list_consumers(self._connection, stream.name)
            changed += [
                f"{stream.name}/{declared_consumer.name}"
                for declared_consumer in self._list_declared_consumers(stream.name)
                if await self._ensure_consumer(
                    declared_consumer, existing_consumers.get(declared_consumer.name)
                )
            ]
        return changed

    async def list_mismatches(self) -> list[str]:
        """Return one sentence for each stream or consumer that differs from its declaration."""
        problems = []
        for spec in self._topology.streams:
            info = await self._find_stream(spec.name)
            problems += _list_differences(
                spec.name, build_stream_config(spec, self._replicas), info.config if info else None
            )
            existing_consumers = await _list_consumers(self._connection, spec.name) if info else {}
            for declared_consumer in self._list_declared_consumers(spec.name):
                consumer_info = existing_consumers.get(declared_consumer.name)
                problems += _list_differences(
                    f"{spec.name}/{declared_consumer.name}",
                    build_consumer_config(declared_consumer),
                    consumer_info.config if consumer_info else None,
                )
        return problems

    async def list_queues(self) -> list[QueueSnapshot]:
        """Return every consumer that is declared and exists."""
        queues = []
        for spec in self._topology.streams:
            info = await self._find_stream(spec.name)
            if info is None:
                continue
            declared_names = {
                consumer.name for consumer in self._list_declared_consumers(spec.name)
            }
            queues += [
                QueueSnapshot(
                    stream=spec.name,
                    consumer=name,
                    pending=consumer_info.num_pending or 0,
                    unsettled=consumer_info.num_ack_pending or 0,
                    stream_created_at=info.created or SEQUENCE_EPOCH,
                    last_sequence=info.state.last_seq,
                    settled_sequence=consumer_info.ack_floor.stream_seq
                    if consumer_info.ack_floor
                    else 0,
                    last_delivered_at=consumer_info.delivered.last_active
                    if consumer_info.delivered
                    else None,
                )
                for name, consumer_info in (
                    await _list_consumers(self._connection, spec.name)
                ).items()
                if name in declared_names
            ]
        return queues

    async def _ensure_stream(self, spec: StreamSpec) -> bool:
        stream_config = build_stream_config(spec, self._replicas)
        info = await self._find_stream(spec.name)
        jetstream = self._connection.jetstream
        if info is None:
            stream_config.first_seq = _compute_first_sequence(self._now())
            return await self._apply_change(spec.name, jetstream.add_stream(stream_config))
        if not _list_differences(spec.name, stream_config, info.config):
            return False
        stream_config.first_seq = info.config.first_seq
        return await self._apply_change(spec.name, jetstream.update_stream(stream_config))

    async def _ensure_consumer(
        self, spec: ConsumerSpec, consumer_info: api.ConsumerInfo | None
    ) -> bool:
        consumer_config = build_consumer_config(spec)
        if consumer_info is not None and not _list_differences(
            spec.name, consumer_config, consumer_info.config
        ):
            return False
        created = self._connection.jetstream.add_consumer(spec.stream, consumer_config)
        return await self._apply_change(f"{spec.stream}/{spec.name}", created)

    async def _apply_change(self, name: str, call: Any) -> bool:
        """Await a change; two processes that make the same stream at once are no error."""
        with translate_errors(f"changing {name}"):
            try:
                await call
            except APIError as failure:
                if failure.err_code == _STREAM_EXISTS:
                    return False
                # What a stream may hold is set aside when it is made: none runs out of it later.
                limit = describe_limit(name, failure, self._topology)
                if limit is not None:
                    raise ServerLimitReached(limit) from failure
                if not isinstance(failure, BadRequestError):
                    raise
                raise TopologyMismatch(
                    f"{name} cannot be made as declared: {failure.description}. Drain the queues, "
                    "delete it with an administrator's account and apply the topology again."
                ) from failure
        return True

    async def _find_stream(self, name: str) -> api.StreamInfo | None:
        with translate_errors(f"asking about {name}"):
            try:
                return await self._connection.jetstream.stream_info(name)
            except NotFoundError:
                return None

    def _list_declared_consumers(self, stream: str) -> Iterable[ConsumerSpec]:
        return [spec for spec in self._topology.consumers if spec.stream == stream]


async def _list_consumers(connection: Connection, stream: str) -> dict[str, api.ConsumerInfo]:
    """Return every consumer by name, a page a request; none where there is no such stream."""
    consumer_infos: dict[str, api.ConsumerInfo] = {}
    while True:
        with translate_errors(f"listing the consumers of {stream}"):
            try:
                page = await connection.jetstream.consumers_info(stream, offset=len(consumer_infos))
            except NotFoundError:
                return {}
        consumer_infos |= {info.name: info for info in page if info.name not in consumer_infos}
        if len(page) < 256:  # noqa: PLR2004 - the server's page size
            return consumer_infos


def _compute_first_sequence(now: datetime) -> int:
    """Return a first sequence that grows with time.

    A stream that is deleted and created again then uses no sequence twice.
    """
    return int((now - SEQUENCE_EPOCH).total_seconds() * SEQUENCES_PER_S)


def build_stream_config(spec: StreamSpec, replicas: int) -> api.StreamConfig:
    """Build the server's configuration of a declaration."""
    is_queue = spec.retention is Retention.WORK_QUEUE
    return api.StreamConfig(
        name=spec.name,
        subjects=list(spec.subjects),
        retention=api.RetentionPolicy(spec.retention.value),
        discard=api.DiscardPolicy.NEW if is_queue else api.DiscardPolicy.OLD,
        storage=api.StorageType.FILE,
        max_bytes=spec.bytes_max,
        max_age=spec.age_s_max,
        max_msg_size=spec.message_bytes_max,
        max_msgs_per_subject=spec.subject_messages_max or -1,
        duplicate_window=spec.duplicate_window_s,
        deny_delete=spec.is_protected,
        deny_purge=spec.is_protected,
        num_replicas=replicas,
    )


def build_consumer_config(spec: ConsumerSpec) -> api.ConsumerConfig:
    """Build the server's configuration of a declaration."""
    return api.ConsumerConfig(
        name=spec.name,
        durable_name=spec.name,
        ack_policy=api.AckPolicy.EXPLICIT,
        deliver_policy=api.DeliverPolicy.ALL,
        ack_wait=spec.ack_wait_s,
        max_deliver=spec.deliveries_max,
        max_ack_pending=spec.ack_pending_max,
        filter_subjects=list(spec.filters) or None,
    )


_COMPARED = (
    "subjects",
    "retention",
    "discard",
    "storage",
    "max_bytes",
    "max_age",
    "max_msg_size",
    "max_msgs_per_subject",
    "duplicate_window",
    "deny_delete",
    "deny_purge",
    "num_replicas",
    "ack_policy",
    "ack_wait",
    "max_deliver",
    "max_ack_pending",
    "filter_subjects",
)


def _list_differences(name: str, declared: Any, existing: Any) -> list[str]:
    if existing is None:
        return [f"{name} does not exist"]
    return [
        f"{name}: {field} is {getattr(existing, field)!r}, declared is {getattr(declared, field)!r}"
        for field in _COMPARED
        if hasattr(declared, field)
        and _sort_if_list(getattr(declared, field)) != _sort_if_list(getattr(existing, field))
        and not (field == "num_replicas" and not getattr(declared, field))
    ]


def _sort_if_list(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value


class JetStreamBacklogs:
    """Asks the server about consumers."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def list_backlogs(self, stream: str) -> dict[str, Backlog]:
        """Return how every consumer of a stream stands, by name."""
        self._connection.require_connected()
        consumer_infos = await _list_consumers(self._connection, stream)
        return {name: _build_backlog(info) for name, info in consumer_infos.items()}

    async def find_backlog(self, *, stream: str, consumer: str) -> Backlog | None:
        """Return how a consumer stands, None when there is none by this name."""
        self._connection.require_connected()
        with translate_errors(f"asking about {stream}/{consumer}"):
            try:
                info = await self._connection.jetstream.consumer_info(stream, consumer)
            except NotFoundError:
                return None
        return _build_backlog(info)


def _build_backlog(info: api.ConsumerInfo) -> Backlog:
    return Backlog(
        pending=info.num_pending or 0,
        unsettled=info.num_ack_pending or 0,
        asking=info.num_waiting or 0,
    )
