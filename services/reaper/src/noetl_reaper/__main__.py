"""Composition root of the reaper."""

from noetl_chassis import health, lifecycle
from noetl_chassis.lifecycle import open_process
from noetl_chassis.loop import Pulse, every
from noetl_messaging.jetstream.connection import Waits, open_connection
from noetl_reaper import settings
from noetl_reaper.settings import Settings
from noetl_reaper.wiring import collecting, retaining, wire
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import open_database


async def serve(config: Settings) -> None:
    """Wire and sweep."""
    waits = Waits(connect_s=config.connect_s, request_s=config.request_s)
    async with (
        open_process(config, service="reaper") as process,
        open_database(
            config.postgres_dsn,
            application_name=process.instance,
            connections_max=config.pool_connections_max,
            connect_deadline_s=config.connect_s,
        ) as database,
        open_connection(config.nats_url, name=process.instance, waits=waits) as nats,
    ):
        await migrate.verify(database)
        pulse = Pulse("sweep", stale_s=30.0)
        process.health.add("postgres", health.reached(database.ping))
        process.health.add("nats", nats.check)
        process.health.add("sweep", pulse.check)
        reaper = wire(config, owner=process.instance, database=database, nats=nats)
        async with (
            collecting(config, process=process, database=database),
            retaining(config, process=process),
        ):
            await every(
                config.sweep_interval_s, reaper.sweep, stop=process.stop, name="sweep", pulse=pulse
            )


def main() -> None:
    """Run until told to stop."""
    lifecycle.run(serve, load=settings.load, prefix=settings.PREFIX)


if __name__ == "__main__":
    main()
