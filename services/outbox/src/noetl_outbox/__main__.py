"""Composition root: the only lines of the outbox that name a concrete adapter."""

from noetl_chassis import health, lifecycle
from noetl_chassis.lifecycle import open_process
from noetl_chassis.loop import LoopHealth
from noetl_chassis.observability import tracing
from noetl_chassis.observability.connection_gauges import LEDGER, show_connection_peaks
from noetl_messaging.jetstream.connection import ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.hints import NatsHints
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_outbox import settings
from noetl_outbox.service import OutboxPublisher
from noetl_outbox.settings import Settings
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import open_database
from noetl_storage.postgres.ledger.outbox import PostgresOutbox


async def run_service(config: Settings) -> None:
    """Wire, run, drain."""
    waits = ConnectionTimeouts(connect_s=config.connect_s, request_s=config.publish_s)
    async with (
        open_process(config, service="outbox") as process,
        open_database(
            config.postgres_dsn,
            application_name=process.instance,
            connections_max=config.pool_connections_max,
            connect_deadline_s=config.connect_s,
        ) as database,
        open_connection(config.nats_url, name=process.instance, waits=waits) as nats,
    ):
        show_connection_peaks(database.peaks, database=LEDGER)
        await migrate.verify_schema(database)
        outbox = OutboxPublisher(
            outbox=PostgresOutbox(database),
            publisher=JetStreamPublisher(nats, span=tracing.start_publication_span),
            hints=NatsHints(nats),
            check=nats.check_connection,
            owner=process.instance,
            claim_lease_s=config.claim_lease_s,
            rows_max=config.batch_rows_max,
        )
        loop_health = LoopHealth("publish", stale_s=30.0)
        process.health.add_check("postgres", health.build_ping_check(database.ping_server))
        process.health.add_check("nats", nats.check_connection)
        process.health.add_check("publish", loop_health.check_health)
        await outbox.run_until_stopped(
            stop=process.stop,
            loop_health=loop_health,
            poll_s=config.poll_interval_s,
            measure_s=config.measure_interval_s,
        )


def main() -> None:
    """Run until told to stop."""
    lifecycle.run_service(run_service, load=settings.load_settings, prefix=settings.PREFIX)


if __name__ == "__main__":
    main()
