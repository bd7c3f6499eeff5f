"""Composition root: the only lines of the projector that name a concrete adapter."""

import asyncio
from functools import partial

from noetl_chassis import lifecycle, loop
from noetl_chassis.clock import SystemClock
from noetl_chassis.loop import LoopHealth
from noetl_chassis.observability import instruments, names
from noetl_chassis.observability.connection_gauges import LEDGER, show_connection_peaks
from noetl_messaging.jetstream.connection import ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.openlineage.endpoint import open_lineage_endpoint
from noetl_messaging.streams import topology
from noetl_projector import settings, wiring
from noetl_projector.projection.histories import prune_past_snapshots
from noetl_projector.projection.lineage_relay import LineageRelay, LineageStores
from noetl_projector.projection.stores import ProjectorStores
from noetl_projector.service import Projector
from noetl_projector.settings import Settings
from noetl_storage.postgres import migrate
from noetl_storage.postgres.database import open_database
from noetl_storage.postgres.ledger.lineage import PostgresLineage, PostgresLineageHistories
from noetl_storage.postgres.ledger.snapshots import PostgresPast, PostgresSnapshots
from noetl_storage.postgres.read_models.checkpoints import PostgresCheckpoints
from noetl_storage.postgres.read_models.projections import PostgresProjections
from noetl_storage.postgres.registry.catalog import PostgresCatalog


async def run_service(config: Settings) -> None:
    """Wire, run, drain."""
    clock, waits = SystemClock(), ConnectionTimeouts(connect_s=config.connect_s)
    name = topology.build_projector_consumer(index=config.shard_index, count=config.shard_count)
    async with (
        lifecycle.open_process(config, service="projector") as process,
        open_database(
            config.postgres_dsn,
            application_name=process.instance,
            connections_max=config.pool_connections_max,
            connect_deadline_s=config.connect_s,
            must_be_durable=False,  # what a projection loses is folded again
        ) as database,
        open_connection(config.nats_url, name=process.instance, waits=waits) as connection,
        wiring.open_ledger(config, database) as ledger,
        open_lineage_endpoint(
            config.openlineage_url, api_key=config.openlineage_api_key
        ) as endpoint,
        asyncio.TaskGroup() as tasks,
    ):
        show_connection_peaks(database.peaks, database=LEDGER)
        instruments.set_gauge(
            names.PROJECTORS_DECLARED,
            config.shard_count,
            labels={names.INDEX: str(config.shard_index)},
        )
        await migrate.verify_schema(database)
        stores = ProjectorStores(
            consumer=JetStreamConsumer(connection, stream=topology.EVENTS, name=name),
            letters=JetStreamDeadLetters(connection),
            ledger=ledger,
            projections=PostgresProjections(database),
            snapshots=PostgresSnapshots(database),
            past=PostgresPast(database),
            rebuilds=PostgresProjections(database),
            checkpoints=PostgresCheckpoints(database),
        )
        projector = Projector(stores=stores, clock=clock, policy=settings.build_policy(config))
        lineage_stores = LineageStores(
            histories=PostgresLineageHistories(database),
            rows=PostgresLineage(database),
            catalog=PostgresCatalog(database),
            endpoint=endpoint,
        )
        lineages = LineageRelay(
            stores=lineage_stores, clock=clock, policy=settings.build_lineage_policy(config)
        )
        await projector.begin_projection()
        loop_health = LoopHealth("projecting", stale_s=config.stale_after_s)
        process.health.add_check("nats", connection.check_connection)
        process.health.add_check("projecting", loop_health.check_health)
        process.health.add_summary("projector", projector.summarize_state)
        stop, rest_s = process.stop, config.catch_up_interval_s
        turn = loop.run_while_busy(
            projector.project_batches, idle_s=0, stop=stop, name="project", loop_health=loop_health
        )
        tasks.create_task(turn)
        tasks.create_task(loop.run_every(rest_s, projector.catch_up, stop=stop, name="catch up"))
        tasks.create_task(loop.run_every(rest_s, projector.measure_lag, stop=stop, name="measure"))
        check_s, check = config.ledger_check_interval_s, projector.compare_all
        tasks.create_task(loop.run_every(check_s, check, stop=stop, name="check ledger"))
        epoch_s, epoch = config.epoch_interval_s, projector.commit_epoch
        tasks.create_task(loop.run_every(epoch_s, epoch, stop=stop, name="epoch"))
        prune = partial(prune_past_snapshots, stores.past, ended_s=config.past_keep_s)
        tasks.create_task(loop.run_every(config.prune_interval_s, prune, stop=stop, name="prune"))
        rest_s = config.lineage_interval_s
        tasks.create_task(
            loop.run_every(rest_s, lineages.record_lineage, stop=stop, name="tell lineage")
        )
        tasks.create_task(
            loop.run_every(rest_s, lineages.deliver_lineage, stop=stop, name="send lineage")
        )
        tasks.create_task(projector.guard.watch_for_failure(stop))


if __name__ == "__main__":
    lifecycle.run_service(run_service, load=settings.load_settings, prefix=settings.PREFIX)
