"""Asks the servers of a broker how they store messages, as a user of their system account."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct
from nats.js.errors import NotFoundError

from noetl_contracts import codec
from noetl_messaging.jetstream.connection import (
    Connection,
    open_connection,
    translate_errors,
)
from noetl_messaging.streams.broker_durability import BrokerSettings, JetStreamConfig
from noetl_messaging.streams.errors import MessagingUnavailable
from noetl_messaging.streams.topology import STREAMS, StreamSpec

SUBJECT = "$SYS.REQ.SERVER.PING.VARZ"
# A server that has not answered by then after another one is taken for gone.
_OTHERS_WITHIN_S = 0.3


class JetStreamReport(Struct, frozen=True, kw_only=True):
    """What a server tells of JetStream; without `config` it has none."""

    config: JetStreamConfig | None = None


class ServerVariables(Struct, frozen=True, kw_only=True):
    """What a server tells of itself."""

    jetstream: JetStreamReport = JetStreamReport()


class ServerAnswer(Struct, frozen=True, kw_only=True):
    """What one server answers; without `data` it could not."""

    data: ServerVariables | None = None


class JetStreamSettings:
    """Reads how streams are stored, and with `monitor_url` how often they are written."""

    def __init__(
        self,
        connection: Connection,
        monitor_url: str = "",
        *,
        streams: Iterable[StreamSpec] = STREAMS,
    ) -> None:
        self._connection = connection
        self._streams = tuple(streams)
        self._monitor_url = monitor_url

    async def read_settings(self) -> BrokerSettings:
        """Ask now. Raises `MessagingUnavailable`."""
        self._connection.require_connected()
        storage_by_stream: dict[str, str] = {}
        with translate_errors("asking how streams are stored"):
            for stream in self._streams:
                try:
                    info = await self._connection.jetstream.stream_info(stream.name)
                except NotFoundError:
                    continue
                storage_by_stream[stream.name] = str(info.config.storage or "")
        return BrokerSettings(
            sync_interval_s=await self._read_interval() if self._monitor_url else None,
            storage_by_stream=storage_by_stream,
        )

    async def _read_interval(self) -> float:
        """Return the longest interval of all servers in seconds, 0 for always."""
        opening = open_connection(
            self._monitor_url, name="planner-monitor", waits=self._connection.waits
        )
        async with opening as monitor:
            answers = await _ask_servers(monitor)
        intervals = [config.interval_s for config in answers]
        told_intervals = [seconds for seconds in intervals if seconds is not None]
        if len(told_intervals) < len(intervals):
            raise MessagingUnavailable(
                "a server does not tell how often it writes streams to the disk: its release is "
                "older than those that NoETL is tried with"
            )
        return max(told_intervals)


async def _ask_servers(monitor: Connection) -> list[JetStreamConfig]:
    """Wait for the first server, and then a moment for each further one."""
    client = monitor.client
    configs: list[JetStreamConfig] = []
    wait_s = monitor.waits.request_s
    with translate_errors("asking how servers store"):
        inbox = client.new_inbox()
        subscription = await client.subscribe(inbox)
        await client.publish(SUBJECT, b"", reply=inbox)
        while True:
            try:
                message = await subscription.next_msg(timeout=wait_s)
            except TimeoutError:
                if not configs:
                    raise
                return configs
            if message.headers and "Status" in message.headers:
                raise MessagingUnavailable(
                    "the user of NOETL_PLANNER_NATS_MONITOR_URL is not of the system account"
                )
            config = _parse_config(message.data)
            configs += [] if config is None else [config]
            wait_s = _OTHERS_WITHIN_S


def _parse_config(data: bytes) -> JetStreamConfig | None:
    """Read an answer, None of a server without JetStream; raises `MessagingUnavailable`."""
    try:
        variables = codec.decode_as(data, ServerAnswer).data
    except msgspec.DecodeError as failure:
        raise MessagingUnavailable(
            f"the answer to {SUBJECT} cannot be read: {failure}"
        ) from failure
    return None if variables is None else variables.jetstream.config
