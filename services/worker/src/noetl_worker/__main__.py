"""Composition root: the only lines of the worker that name a concrete adapter."""

import asyncio
from contextlib import AsyncExitStack

from noetl_chassis import lifecycle
from noetl_chassis.clock import SystemClock
from noetl_chassis.lifecycle import open_process
from noetl_chassis.loop import LoopHealth
from noetl_chassis.observability import tracing
from noetl_chassis.write_check import check_writes
from noetl_messaging.jetstream.connection import Connection, ConnectionTimeouts, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.jetstream.hints import NatsHints
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.jetstream.registers import JetStreamRegisters
from noetl_messaging.streams import topology
from noetl_worker import settings, wiring
from noetl_worker.executor_entry import run_partition
from noetl_worker.executor_environ import build_told_entry
from noetl_worker.settings import Settings
from noetl_worker.tool_factory import open_tools
from noetl_worker.wiring import Adapters, open_tiers


async def serve_worker(config: Settings) -> None:
    """Wire, run, drain."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        process = await enter(open_process(config, service="worker"))
        waits = ConnectionTimeouts(connect_s=config.connect_s)
        nats = await enter(open_connection(config.nats_url, name=process.instance, waits=waits))
        store = await enter(wiring.open_payload_store(config))
        payloads = await enter(open_tiers(config, store, clock))
        tools, mask = await enter(
            open_tools(config, payloads, clock, near=payloads, stop=process.stop)
        )
        process.health.add_check("nats", nats.check_connection)
        await enter(check_writes(store.check_write, name="store", process=process))
        async with asyncio.TaskGroup() as group:
            group.create_task(tools.spark_session.warm_session())
            for lane in config.lanes:
                adapters = Adapters(
                    consumers=_build_consumers(nats, config, lane),
                    shares={
                        tenant_id: _build_consumers(nats, config, lane, tenant_id)
                        for tenant_id in settings.parse_tenant_weights(config)
                    },
                    publisher=JetStreamPublisher(nats, span=tracing.start_publication_span),
                    hints=NatsHints(nats),
                    registers=JetStreamRegisters(nats),
                    dead_letters=JetStreamDeadLetters(nats),
                    payloads=payloads,
                    tools=tools,
                    mask=mask,
                    clock=clock,
                )
                loop_health = LoopHealth(f"{lane} commands", stale_s=30.0)
                process.health.add_check(f"{lane} commands", loop_health.check_health)
                entry = build_told_entry(run_partition, master=config.spark_master)
                worker = wiring.build_worker(
                    adapters, config, instance=process.instance, lane=lane, entry=entry
                )
                running = worker.run(
                    stop=process.stop, loop_health=loop_health, drain_s=config.drain_s
                )
                group.create_task(running)


def _build_consumers(
    nats: Connection, config: Settings, host: str, tenant_id: str | None = None
) -> tuple[JetStreamConsumer, ...]:
    return tuple(
        JetStreamConsumer(nats, stream=topology.COMMANDS, name=name, standing=1, is_shared=True)
        for name in topology.list_worker_consumers(config.pool, host, tenant_id)
    )


def main() -> None:
    """Run until told to stop."""
    lifecycle.run_service(serve_worker, load=settings.load_settings, prefix=settings.PREFIX)


if __name__ == "__main__":
    main()
