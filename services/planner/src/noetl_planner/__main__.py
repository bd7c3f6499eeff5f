"""Composition root: the only lines of the planner that name a concrete adapter."""

from contextlib import AsyncExitStack
from functools import partial

from noetl_chassis import lifecycle, tracing
from noetl_chassis.clock import SystemClock
from noetl_chassis.identity import Snowflake
from noetl_messaging import topology
from noetl_messaging.jetstream.backlogs import JetStreamBacklogs
from noetl_messaging.jetstream.connection import Waits, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.jetstream.hints import NatsHints
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_planner import assembly, settings
from noetl_planner.shell.crowd import Crowd
from noetl_planner.shell.pacing import paced
from noetl_storage.archive.reading import Archive, ArchivedAudit, ArchivedLedger
from noetl_storage.postgres.audit import PostgresLedgerAudit
from noetl_storage.postgres.catalog import PostgresCatalog
from noetl_storage.postgres.credentials import PostgresCredentials
from noetl_storage.postgres.dead_letter_log import PostgresDeadLetterLog
from noetl_storage.postgres.instances import PostgresInstances
from noetl_storage.postgres.ledger import PostgresLedger
from noetl_storage.postgres.lineage import PostgresLineageHistories
from noetl_storage.postgres.objects import PostgresObjects
from noetl_storage.postgres.outbox import PostgresOutbox
from noetl_storage.postgres.pages import PostgresHistoryPages
from noetl_storage.postgres.projections import PostgresProjections
from noetl_storage.postgres.requests import PostgresRequests
from noetl_storage.postgres.retention import PostgresArchiveIndex, PostgresHolds
from noetl_storage.postgres.schedules import PostgresSchedules
from noetl_storage.postgres.shards import PostgresShardLeases
from noetl_storage.postgres.snapshots import PostgresPast, PostgresSnapshots
from noetl_storage.postgres.triggers import PostgresTriggers
from noetl_storage.postgres.webhooks import PostgresWebhooks


async def serve(config: settings.Settings) -> None:
    """Wire, run, give the shards back."""
    clock, waits = SystemClock(), Waits(connect_s=config.connect_s)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        process = await enter(lifecycle.open_process(config, service="planner"))
        database = await enter(assembly.open_ledger(config, name=process.instance))
        opening = open_connection(config.nats_url, name="planner", waits=waits, hears_itself=False)
        bus = await enter(opening)
        payloads, lease_s = await enter(assembly.open_store(config)), config.shard_lease_s * 2
        archive = Archive(PostgresArchiveIndex(database), payloads)
        ledger, instances = PostgresLedger(database), PostgresInstances(database)
        node = await instances.register(instance=process.instance, kind="planner", lease_s=lease_s)
        process.health.add("nats", bus.check)
        await assembly.run(
            assembly.Adapters(
                ledger=ArchivedLedger(ledger, ledger, archive),
                requests=PostgresRequests(database),
                outbox=PostgresOutbox(database),
                shards=PostgresShardLeases(database),
                instances=instances,
                projections=PostgresProjections(database),
                snapshots=PostgresSnapshots(database),
                audit=ArchivedAudit(PostgresLedgerAudit(database), archive),
                past=PostgresPast(database),
                holds=PostgresHolds(database),
                lineage=PostgresLineageHistories(database),
                objects=PostgresObjects(database),
                pages=PostgresHistoryPages(database),
                catalog=PostgresCatalog(database),
                credentials=PostgresCredentials(database),
                schedules=PostgresSchedules(database),
                webhooks=PostgresWebhooks(database),
                triggers=PostgresTriggers(database),
                dead_letter_log=PostgresDeadLetterLog(database),
                payloads=payloads,
                publisher=JetStreamPublisher(bus, span=tracing.publication_span),
                consumer=paced(partial(JetStreamConsumer, bus, stream=topology.INGEST), clock),
                dead_letters=JetStreamDeadLetters(bus),
                hints=NatsHints(bus),
                backlogs=JetStreamBacklogs(bus),
                clock=clock,
                snowflake=Snowflake(node=node, clock=clock),
                crowd=Crowd(clock),
            ),
            config,
            process,
        )


def main() -> None:
    """Run until told to stop."""
    lifecycle.run(serve, load=settings.load, prefix=settings.PREFIX)


if __name__ == "__main__":
    main()
