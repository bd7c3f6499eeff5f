"""Composition root: the only lines of the planner that name a concrete adapter."""

from contextlib import AsyncExitStack
from functools import partial

from noetl_chassis import lifecycle
from noetl_chassis.clock import SystemClock
from noetl_chassis.observability import tracing
from noetl_messaging.jetstream.broker_settings import JetStreamSettings
from noetl_messaging.jetstream.connection import ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.jetstream.hints import NatsHints
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.jetstream.streams import JetStreamBacklogs
from noetl_messaging.streams import topology
from noetl_planner import settings, wiring
from noetl_planner.shards.adaptive_consumer import make_adaptive
from noetl_planner.shards.store_waits import StoreWaits
from noetl_planner.shards.worker_presence import WorkerPresence
from noetl_storage.archive.archive_reader import ArchivedAudit, ArchivedLedger, ArchiveReader
from noetl_storage.postgres import durability, migrate
from noetl_storage.postgres.ledger.audit import PostgresLedgerAudit
from noetl_storage.postgres.ledger.instances import PostgresInstances
from noetl_storage.postgres.ledger.ledger import PostgresLedger
from noetl_storage.postgres.ledger.lineage import PostgresLineageHistories
from noetl_storage.postgres.ledger.outbox import PostgresOutbox
from noetl_storage.postgres.ledger.requests import PostgresRequests
from noetl_storage.postgres.ledger.retention import PostgresArchiveIndex, PostgresHolds
from noetl_storage.postgres.ledger.shards import PostgresShardLeases
from noetl_storage.postgres.ledger.snapshots import PostgresPast, PostgresSnapshots
from noetl_storage.postgres.ledger.states import PostgresStates
from noetl_storage.postgres.read_models.business_objects import PostgresBusinessObjects
from noetl_storage.postgres.read_models.history_pages import PostgresHistoryPages
from noetl_storage.postgres.read_models.projections import PostgresProjections
from noetl_storage.postgres.registry.administration import PostgresAdministrationLog
from noetl_storage.postgres.registry.catalog import PostgresCatalog
from noetl_storage.postgres.registry.credentials import PostgresCredentials
from noetl_storage.postgres.registry.dead_letter_log import PostgresDeadLetterLog
from noetl_storage.postgres.registry.identities import PostgresIdentities, PostgresQuotas
from noetl_storage.postgres.registry.notifications import PostgresNotifications
from noetl_storage.postgres.registry.schedules import PostgresSchedules
from noetl_storage.postgres.registry.sessions import PostgresSessions
from noetl_storage.postgres.registry.triggers import PostgresTriggers
from noetl_storage.postgres.registry.webhooks import PostgresWebhooks


async def run_service(config: settings.Settings) -> None:
    """Wire, run, give the shards back."""
    clock, waits = SystemClock(), ConnectionTimeouts(connect_s=config.connect_s)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        process = await enter(lifecycle.open_process(config, service="planner"))
        process.health.expect_start("api", "the API is not listening yet")
        database = await enter(wiring.open_ledger(config, name=process.instance))
        await migrate.verify_schema(database)
        opening = open_connection(config.nats_url, name="planner", waits=waits, hears_itself=False)
        bus = await enter(opening)
        payloads = await enter(wiring.open_payload_store(config))
        consumer = partial(JetStreamConsumer, bus, stream=topology.INGEST)
        archive = ArchiveReader(PostgresArchiveIndex(database), payloads)
        ledger, instances = PostgresLedger(database), PostgresInstances(database)
        await enter(wiring.watch_servers(process, bus.check_connection, payloads))
        await wiring.run_planner(
            wiring.Adapters(
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
                durability=durability.PostgresDurability(database),
                lineage=PostgresLineageHistories(database),
                objects=PostgresBusinessObjects(database),
                pages=PostgresHistoryPages(database),
                identities=PostgresIdentities(database),
                quotas=PostgresQuotas(database),
                administration=PostgresAdministrationLog(database),
                catalog=PostgresCatalog(database),
                credentials=PostgresCredentials(database),
                schedules=PostgresSchedules(database),
                sessions=PostgresSessions(database),
                notifications=PostgresNotifications(database),
                webhooks=PostgresWebhooks(database),
                triggers=PostgresTriggers(database),
                dead_letter_log=PostgresDeadLetterLog(database),
                states=PostgresStates(database),
                payloads=payloads,
                publisher=JetStreamPublisher(bus, span=tracing.start_publication_span),
                consumer=make_adaptive(consumer, clock),
                dead_letters=JetStreamDeadLetters(bus),
                hints=NatsHints(bus),
                backlogs=JetStreamBacklogs(bus),
                broker_settings=JetStreamSettings(bus, config.nats_monitor_url),
                clock=clock,
                snowflake=await wiring.register_planner(instances, process, clock, config),
                worker_presence=WorkerPresence(clock),
                store_waits=StoreWaits(clock),
            ),
            config,
            process,
        )


def main() -> None:
    """Run until told to stop."""
    lifecycle.run_service(run_service, load=settings.load_settings, prefix=settings.PREFIX)


if __name__ == "__main__":
    main()
