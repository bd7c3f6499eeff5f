"""`python -m noetl_messaging apply | verify`: the topology job."""

import asyncio
import logging
import sys
from datetime import UTC, datetime

from noetl_contracts import subjects
from noetl_contracts.errors import NoetlError
from noetl_messaging import settings
from noetl_messaging.jetstream.connection import ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.streams import JetStreamStreams
from noetl_messaging.streams import topology

USAGE = "usage: python -m noetl_messaging apply | verify"


def main(arguments: list[str]) -> int:
    """Do what the first argument says; return the exit code."""
    if arguments not in (["apply"], ["verify"]):
        sys.stderr.write(f"{USAGE}\n")
        return 2
    # What cannot be reached is said once, by the error below.
    logging.getLogger("noetl.messaging").setLevel(logging.ERROR)
    try:
        lines, code = asyncio.run(_run_verb(arguments[0], settings.load_settings()))
    except settings.SettingsError as failure:
        sys.stderr.write(f"error: {failure}\n")
        return 2
    except NoetlError as failure:
        sys.stderr.write(f"error: {failure}\n")
        return 1
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return code


async def _run_verb(verb: str, config: settings.Settings) -> tuple[list[str], int]:
    declared_topology = topology.declare_topology(
        shard_count=config.shard_count,
        projector_count=config.projector_count,
        pools=_split_list(config.pools),
        tenants=subjects.parse_tenant_shares(_split_list(config.tenants)),
        lease_s=config.lease_s,
    )
    waits = ConnectionTimeouts(connect_s=config.connect_s)
    async with open_connection(config.nats_url, name="topology", waits=waits) as connection:
        streams = JetStreamStreams(
            connection, declared_topology, now=_read_clock, replicas=config.replicas
        )
        if verb == "apply":
            changed = await streams.ensure_streams()
            return [f"applied {name}" for name in changed] or ["nothing to change"], 0
        problems = await streams.list_mismatches()
        return problems or ["as declared"], 1 if problems else 0


def _split_list(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def _read_clock() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - a job of one turn has no clock to be handed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
