"""Composition root: the only lines of the outbox that name a concrete adapter."""

from noetl_chassis import health, lifecycle, tracing
from noetl_chassis.lifecycle import open_process
from noetl_chassis.loop import Pulse
from noetl_messaging.jetstream.connection import Waits, open_connection
from noetl_messaging.jetstream.hints import NatsHints
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_outbox import settings
from noetl_outbox.service import OutboxPublisher
from noetl_outbox.settings import Settings
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import open_database
from noetl_storage.postgres.outbox import PostgresOutbox


async def serve(config: Settings) -> None:
    """Wire, run, drain."""
    waits = Waits(connect_s=config.connect_s, request_s=config.publish_s)
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
        await migrate.verify(database)
        outbox = OutboxPublisher(
            outbox=PostgresOutbox(database),
            publisher=JetStreamPublisher(nats, span=tracing.publication_span),
            hints=NatsHints(nats),
            check=nats.check,
            owner=process.instance,
            claim_lease_s=config.claim_lease_s,
            rows_max=config.batch_rows_max,
        )
        pulse = Pulse("publish", stale_s=30.0)
        process.health.add("postgres", health.reached(database.ping))
        process.health.add("nats", nats.check)
        process.health.add("publish", pulse.check)
        await outbox.run(
            stop=process.stop,
            pulse=pulse,
            poll_s=config.poll_interval_s,
            measure_s=config.measure_interval_s,
        )


def main() -> None:
    """Run until told to stop."""
    lifecycle.run(serve, load=settings.load, prefix=settings.PREFIX)


if __name__ == "__main__":
    main()
