"""Composition root: the only lines of the planner that name a concrete adapter."""

from contextlib import AsyncExitStack
from functools import partial

from noetl_chassis import lifecycle
from noetl_chassis.clock import SystemClock
from noetl_chassis.identity import Snowflake
from noetl_messaging import topology
from noetl_messaging.jetstream.connection import Waits, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.jetstream.hints import NatsHints
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_planner import settings
from noetl_planner.assembly import Adapters, run
from noetl_planner.settings import Settings
from noetl_storage.payloads.open import open_payloads
from noetl_storage.postgres.audit import PostgresLedgerAudit
from noetl_storage.postgres.catalog import PostgresCatalog
from noetl_storage.postgres.credentials import PostgresCredentials
from noetl_storage.postgres.database import open_database
from noetl_storage.postgres.instances import PostgresInstances
from noetl_storage.postgres.ledger import PostgresLedger
from noetl_storage.postgres.outbox import PostgresOutbox
from noetl_storage.postgres.projections import PostgresProjections
from noetl_storage.postgres.requests import PostgresRequests
from noetl_storage.postgres.schedules import PostgresSchedules
from noetl_storage.postgres.shards import PostgresShardLeases
from noetl_storage.postgres.snapshots import PostgresPast, PostgresSnapshots
from noetl_storage.postgres.webhooks import PostgresWebhooks


async def serve(config: Settings) -> None:
    """Wire, run, give the shards back."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        process = await enter(lifecycle.open_process(config, service="planner"))
        opening = open_database(
            config.postgres_dsn,
            application_name=process.instance,
            connections_max=config.pool_connections_max,
            connect_deadline_s=config.connect_s,
        )
        database = await enter(opening)
        waits = Waits(connect_s=config.connect_s)
        bus = await enter(open_connection(config.nats_url, name="planner", waits=waits))
        storing = open_payloads(
            config.payload_url,
            access_key=config.payload_access_key or None,
            secret_key=config.payload_secret_key or None,
            connect_s=config.connect_s,
        )
        payloads = await enter(storing)
        clock, instances = SystemClock(), PostgresInstances(database)
        name, lease_s = process.instance, config.shard_lease_s * 2
        node = await instances.register(instance=name, kind="planner", lease_s=lease_s)
        process.health.add("nats", bus.check)
        await run(
            Adapters(
                ledger=PostgresLedger(database),
                requests=PostgresRequests(database),
                outbox=PostgresOutbox(database),
                shards=PostgresShardLeases(database),
                instances=instances,
                projections=PostgresProjections(database),
                snapshots=PostgresSnapshots(database),
                audit=PostgresLedgerAudit(database),
                past=PostgresPast(database),
                catalog=PostgresCatalog(database),
                credentials=PostgresCredentials(database),
                schedules=PostgresSchedules(database),
                webhooks=PostgresWebhooks(database),
                payloads=payloads,
                publisher=JetStreamPublisher(bus),
                consumer=partial(JetStreamConsumer, bus, stream=topology.INGEST),
                dead_letters=JetStreamDeadLetters(bus),
                hints=NatsHints(bus),
                clock=clock,
                snowflake=Snowflake(node=node, clock=clock),
            ),
            config,
            process,
        )


def main() -> None:
    """Run until told to stop."""
    lifecycle.run(serve, load=settings.load, prefix=settings.PREFIX)


if __name__ == "__main__":
    main()
