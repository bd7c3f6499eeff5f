"""Composition root: the only lines of the worker that name a concrete adapter."""

import asyncio
from contextlib import AsyncExitStack

from noetl_chassis import lifecycle, tracing
from noetl_chassis.clock import SystemClock
from noetl_chassis.lifecycle import open_process
from noetl_chassis.loop import Pulse
from noetl_chassis.payload_sealing import read_keys
from noetl_messaging import topology
from noetl_messaging.jetstream.connection import Connection, Waits, open_connection
from noetl_messaging.jetstream.consumer import JetStreamConsumer
from noetl_messaging.jetstream.dead_letters import JetStreamDeadLetters
from noetl_messaging.jetstream.hints import NatsHints
from noetl_messaging.jetstream.publisher import JetStreamPublisher
from noetl_messaging.jetstream.registers import JetStreamRegisters
from noetl_storage.payloads import managed
from noetl_storage.payloads.open import open_payloads
from noetl_worker import assembly, settings
from noetl_worker.assembly import Adapters
from noetl_worker.opening import open_tools
from noetl_worker.settings import Settings
from noetl_worker.tiering import open_tiers
from noetl_worker.waving import run_share


async def serve(config: Settings) -> None:
    """Wire, run, drain."""
    clock = SystemClock()
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        process = await enter(open_process(config, service="worker"))
        waits = Waits(connect_s=config.connect_s)
        nats = await enter(open_connection(config.nats_url, name=process.instance, waits=waits))
        store = await enter(
            open_payloads(
                config.payload_url,
                access_key=config.payload_access_key or None,
                secret_key=config.payload_secret_key or None,
                connect_s=config.connect_s,
                seals=read_keys(
                    config.payload_seal_key,
                    file=config.payload_seal_file,
                    managed=managed.open_keys,
                ),
            )
        )
        payloads = await enter(open_tiers(config, store, clock))
        tools, mask = await enter(open_tools(config, payloads, clock, near=payloads))
        process.health.add("nats", nats.check)
        async with asyncio.TaskGroup() as group:
            for lane in config.lanes:
                adapters = Adapters(
                    consumers=_lanes(nats, config, lane),
                    shares={
                        tenant_id: _lanes(nats, config, lane, tenant_id)
                        for tenant_id in settings.weights_of(config)
                    },
                    publisher=JetStreamPublisher(nats, span=tracing.publication_span),
                    hints=NatsHints(nats),
                    registers=JetStreamRegisters(nats),
                    dead_letters=JetStreamDeadLetters(nats),
                    payloads=payloads,
                    tools=tools,
                    mask=mask,
                    clock=clock,
                )
                pulse = Pulse(f"{lane} commands", stale_s=30.0)
                process.health.add(f"{lane} commands", pulse.check)
                worker = assembly.build(
                    adapters, config, instance=process.instance, lane=lane, entry=run_share
                )
                running = worker.run(stop=process.stop, pulse=pulse, drain_s=config.drain_s)
                group.create_task(running)


def _lanes(
    nats: Connection, config: Settings, host: str, tenant_id: str | None = None
) -> tuple[JetStreamConsumer, ...]:
    return tuple(
        JetStreamConsumer(nats, stream=topology.COMMANDS, name=name, standing=1, is_shared=True)
        for name in topology.worker_consumers(config.pool, host, tenant_id)
    )


def main() -> None:
    """Run until told to stop."""
    lifecycle.run(serve, load=settings.load, prefix=settings.PREFIX)


if __name__ == "__main__":
    main()
