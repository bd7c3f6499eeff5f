"""An account of NATS that is too small for the streams is told as such, with the way out."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.services import free_port

from noetl_chassis.clock import SystemClock
from noetl_cli.stack.processes import programs
from noetl_contracts.errors import Retryable
from noetl_messaging.jetstream.connection import ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.streams import topology
from noetl_messaging.streams.errors import ServerLimitReached

WAITS = ConnectionTimeouts(connect_s=30.0, request_s=10.0)
DECLARED = topology.declare_topology(shard_count=2)
STREAMS = len(DECLARED.streams)
STORE_MIB = sum(spec.bytes_max for spec in DECLARED.streams) // (1024 * 1024)
LARGEST_MIB = max(spec.bytes_max for spec in DECLARED.streams) // (1024 * 1024)
USER = "{ user: app, password: app }"
UNSETTLED = max(consumer.ack_pending_max for consumer in DECLARED.consumers)


@contextmanager
def limited_server(folder: Path, limits: str) -> Iterator[str]:
    """Run NATS with one account that has these limits of JetStream; gives its address."""
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(
        f'listen: "127.0.0.1:{port}"\n'
        f'jetstream {{ store_dir: "{folder / "store"}" }}\n'
        f"accounts {{ APP: {{ jetstream: {limits}, users: [ {USER} ] }} }}\n",
        "utf-8",
    )
    with (folder / "nats.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603 - the wheel's own server
            [programs.find_nats_server(), "-c", config], stdout=log, stderr=log
        )
        try:
            yield f"nats://app:app@127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(timeout=30)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ("{ max_file: 64MB }", rf"{STORE_MIB} MiB.*`max_file_store`, or the account's `max_file`"),
        ("{ max_streams: 2 }", rf"{STREAMS} streams are declared.*`max_streams` to {STREAMS}"),
        ("{ max_consumers: 1 }", r"consumers are declared for NOETL_.*`max_consumers` to \d+"),
        ("{ max_ack_pending: 10 }", rf"`max_ack_pending` to {UNSETTLED}"),
        ("{ disk_max_stream_bytes: 64MB }", rf"`disk_max_stream_bytes` to {LARGEST_MIB} MiB"),
    ],
)
async def test_a_limit_that_is_too_small_is_named_with_what_it_must_be(
    tmp_path: Path, limits: str, said: str
) -> None:
    with limited_server(tmp_path, limits) as url:
        async with open_connection(url, name="test", waits=WAITS) as connection:
            streams = JetStreamStreams(connection, DECLARED, now=SystemClock().now)
            with pytest.raises(ServerLimitReached, match=said) as refused:
                await streams.ensure_streams()
    # A service tries again: an administrator may raise the limit while it runs.
    assert isinstance(refused.value, Retryable)
