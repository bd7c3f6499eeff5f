"""Composition root of the reaper."""

from noetl_chassis import health, lifecycle
from noetl_chassis.lifecycle import open_process
from noetl_chassis.loop import LoopHealth, run_every
from noetl_chassis.observability.connection_gauges import LEDGER, show_connection_peaks
from noetl_messaging.jetstream.connection import ConnectionTimeouts, open_connection
from noetl_reaper import settings
from noetl_reaper.settings import Settings
from noetl_reaper.wiring import (
    collect_payloads,
    count_storage,
    retain_histories,
    watch_workers,
    wire_reaper,
)
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import open_database


async def run_service(config: Settings) -> None:
    """Wire and sweep."""
    waits = ConnectionTimeouts(connect_s=config.connect_s, request_s=config.request_s)
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
        show_connection_peaks(database.peaks, database=LEDGER)
        await migrate.verify_schema(database)
        loop_health = LoopHealth("sweep", stale_s=30.0)
        process.health.add_check("postgres", health.build_ping_check(database.ping_server))
        process.health.add_check("nats", nats.check_connection)
        process.health.add_check("sweep", loop_health.check_health)
        reaper = wire_reaper(config, owner=process.instance, database=database, nats=nats)
        async with (
            collect_payloads(config, process=process, database=database),
            count_storage(config, process=process, database=database),
            retain_histories(config, process=process),
            watch_workers(config, reaper, process=process, database=database, nats=nats),
        ):
            await run_every(
                config.sweep_interval_s,
                reaper.sweep,
                stop=process.stop,
                name="sweep",
                loop_health=loop_health,
            )


def main() -> None:
    """Run until told to stop."""
    lifecycle.run_service(run_service, load=settings.load_settings, prefix=settings.PREFIX)


if __name__ == "__main__":
    main()
