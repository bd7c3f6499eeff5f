"""A worker in the test's own process: real tools, memory adapters, commands written as YAML."""

import asyncio
import itertools
import os
from base64 import b64encode
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from msgspec import Struct

from noetl_chassis.clock import SystemClock
from noetl_chassis.seals.credential_seal import CredentialSealer
from noetl_contracts import codec, credentials, ids, subjects
from noetl_contracts.commands.command_work import (
    Command,
    FrameWork,
    StateSlice,
    StepResult,
    StepWork,
    Work,
)
from noetl_contracts.ids import ExecutionId, OrganizationId, TenantId, WorkerId
from noetl_contracts.ingest_routes import IngestRoutes
from noetl_contracts.payloads import PayloadRef, ResultEnvelope
from noetl_contracts.requests import facts
from noetl_contracts.requests.facts import Fact
from noetl_messaging.memory.broker import MemoryBroker
from noetl_messaging.memory.consumer import MemoryConsumer
from noetl_messaging.memory.dead_letters import MemoryDeadLetters
from noetl_messaging.memory.registers import MemoryRegisters
from noetl_messaging.streams import topology
from noetl_messaging.streams.ports import Message, Registers
from noetl_playbook.parse.playbook import parse_playbook
from noetl_playbook.templates.lookup import Lookup
from noetl_playbook.views import result_envelope
from noetl_playbook.views.payload_handle import PayloadHandle
from noetl_storage.arrow import result_values
from noetl_storage.payloads.memory import MemoryPayloads
from noetl_storage.ports.ledger_ports import Payloads
from noetl_worker.commands.call_pacer import CallPacer
from noetl_worker.commands.command_lease import CancelledExecutions
from noetl_worker.commands.fact_publisher import FactPublisher, ReportRoute
from noetl_worker.domain.secret_mask import SecretMask
from noetl_worker.payloads.tenant_payloads import PayloadCache
from noetl_worker.runner.command_host import CommandHost, HostServices
from noetl_worker.settings import Settings
from noetl_worker.tool_factory import open_tools
from noetl_worker.tools import Tools

EXECUTION = ExecutionId("264905529753600000")
TENANT = TenantId("acme")
ORGANIZATION = OrganizationId("west")
WORKER = WorkerId("worker-1")
RUN = ids.derive_run_id(EXECUTION, 1)
STAGE = ids.derive_stage_id(RUN)
KEY = b64encode(os.urandom(32)).decode()

COPIES = itertools.count(1)

HEAD = """
apiVersion: noetl.io/v2
kind: Playbook
metadata: {name: t}
executor: {spec: {undefined: lenient}}
workflow:
"""


def step_of(text: str) -> dict[str, Any]:
    """The canonical form of the first step of a workflow written as YAML.

    A step may read what stands nowhere beside it: the builder of its command brings that.
    """
    parsed = parse_playbook(HEAD + text)
    assert parsed.playbook is not None, parsed.problems
    step: dict[str, Any] = codec.to_builtins(parsed.playbook.workflow[0])
    return step


def command_of(  # noqa: PLR0913 - a builder takes whatever its test is about
    step: str | dict[str, Any],
    *,
    work: Work | None = None,
    attempt: int = 1,
    workload: dict[str, Any] | None = None,
    ctx: dict[str, Any] | None = None,
    steps: dict[str, StepResult] | None = None,
    came_from: str | None = None,
    unit: str | None = None,
    lease_s: float = 30.0,
    heartbeat_s: float = 10.0,
    defaults: dict[str, Any] | None = None,
    limits: dict[str, int] | None = None,
    slice_: StateSlice | None = None,
    keychain: list[dict[str, Any]] | None = None,
) -> Command:
    """A command for one step, as the planner would issue it."""
    definition = step_of(step) if isinstance(step, str) else step
    return Command(
        command_id=ids.derive_command_id(RUN, unit or f"unit-{next(COPIES)}"),
        execution_id=EXECUTION,
        tenant_id=TENANT,
        organization_id=ORGANIZATION,
        run_id=RUN,
        activation=1,
        step=definition["step"],
        attempt=attempt,
        pool="default",
        lane="io",
        lease_s=lease_s,
        heartbeat_s=heartbeat_s,
        definition=definition,
        work=work or StepWork(),
        slice=slice_
        or StateSlice(
            workload=workload or {}, ctx=ctx or {}, steps=steps or {}, came_from=came_from
        ),
        defaults=defaults or {},
        limits=limits or {},
        keychain=keychain or [],
    )


def frame_of(
    unit: int, reference: PayloadRef, *, total: int, size: int, frame: Mapping[str, Any]
) -> FrameWork:
    """The work of one of a collection's frames, as the planner would cut it."""
    frame_id = ids.derive_frame_id(STAGE, slot=unit, frame_index=0)
    return FrameWork(
        stage_id=STAGE,
        frame_id=frame_id,
        root_frame_id=frame_id,
        unit=unit,
        frame_index=0,
        attempt=1,
        start=unit * size,
        end=min(total, (unit + 1) * size),
        total=total,
        collection_ref=reference,
        frame=dict(frame),
    )


class Bench(Struct, frozen=True, kw_only=True):
    """An io lane and everything that it touches."""

    lane: CommandHost
    broker: MemoryBroker
    payloads: Payloads
    commands: MemoryConsumer
    ingest: MemoryConsumer
    tools: Tools
    mask: SecretMask
    halts: CancelledExecutions
    # A tool sets it to end the worker.
    stop: asyncio.Event

    async def send(self, command: Command, *, copy: int = 0) -> None:
        """Put a command into the stream."""
        await self.broker.publish_message(
            Message(
                subject=subjects.build_command_subject(
                    command.pool, command.lane, command.tenant_id, command.organization_id
                ),
                message_id=f"{command.command_id}/{command.attempt}/{copy or next(COPIES)}",
                data=codec.encode_json(command),
            )
        )

    async def run(self, command: Command) -> list[Fact]:
        """Run one command to its end and return its facts."""
        await self.send(command)
        (delivery,) = await self.commands.fetch_batch(messages_max=1, wait_s=5)
        async with asyncio.timeout(240):
            await self.lane.handle_delivery(delivery)
        return await self.facts()

    async def batches(self) -> list[facts.FactBatch]:
        """Take every batch that waits for the planner."""
        fact_batches = []
        for delivery in await self.ingest.fetch_batch(messages_max=1000, wait_s=0.01):
            fact_batches.append(facts.decode_fact_batch(delivery.data))
            await delivery.ack()
        return fact_batches

    async def facts(self) -> list[Fact]:
        """Take every fact that waits for the planner."""
        return [fact for batch in await self.batches() for fact in batch.facts]

    async def put_credential(
        self, name: str, fields: dict[str, Any], *, kind: str = "postgres", version: int = 1
    ) -> None:
        """Register a credential as the API does."""
        sealed = CredentialSealer(KEY).seal_credential(
            fields,
            name=name,
            version=version,
            kind=kind,
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
        )
        await self.payloads.put_named(
            credentials.build_object_name(name, version),
            codec.encode_json(sealed),
            tenant_id=TENANT,
            organization_id=ORGANIZATION,
        )

    async def value(self, result: ResultEnvelope) -> Any:
        """The plain form of a result, loaded if it is kept by reference."""
        loaded = {}
        if result.reference is not None:
            loaded[result.reference.sha256] = await result_values.load_value(
                self.payloads.read_payload, result.reference
            )
        view = result_envelope.view_result(
            result,
            execution_id=EXECUTION,
            step="s",
            run="1",
            find=result_envelope.make_payload_finder(loaded),
        )
        return view.to_plain() if isinstance(view, Lookup) else view


def is_stored(view: Any) -> bool:
    """Tell whether a view is of a stored payload."""
    return isinstance(view, PayloadHandle)


def settings_of(**fields: Any) -> Settings:
    """Settings of a worker whose HTTP tool may reach this machine."""
    known_names: dict[str, Any] = {
        "nats_url": "nats://nowhere",
        "payload_url": "memory://",
        "secret_key": KEY,
        "http_allow": ("127.0.0.1",),
        "shard_count": 1,
    }
    return Settings(**{**known_names, **fields})


@asynccontextmanager
async def bench(
    registers: Registers | None = None, store: Payloads | None = None, **fields: Any
) -> AsyncIterator[Bench]:
    """A worker's lane with memory adapters and real tools; `store` takes payloads elsewhere."""
    config, clock = settings_of(**fields), SystemClock()
    broker = MemoryBroker(topology.declare_topology(shard_count=1, lease_s=config.lease_s), clock)
    await broker.ensure_streams()
    payloads = MemoryPayloads() if store is None else store
    stop = asyncio.Event()
    async with open_tools(config, payloads, clock, stop=stop) as (tools, mask):
        publisher = FactPublisher(
            publisher=broker,
            worker_id=WORKER,
            route=ReportRoute(routes=IngestRoutes(shard_count=1)),
            mask=mask,
            clock=clock,
        )
        halts = CancelledExecutions(broker)
        lane = CommandHost(
            HostServices(
                tools=tools,
                payloads=payloads,
                remembered=PayloadCache(bytes_max=1024 * 1024),
                fact_publisher=publisher,
                mask=mask,
                hints=broker,
                dead_letters=MemoryDeadLetters(broker),
                pool="default",
                lease_s=config.lease_s,
                commands_max=config.commands_max,
                cancelled_executions=halts,
                pacer=CallPacer(registers=registers or MemoryRegisters(), clock=clock),
                held_wait_s=config.held_wait_s,
            )
        )
        yield Bench(
            lane=lane,
            broker=broker,
            payloads=payloads,
            commands=MemoryConsumer(broker, stream=topology.COMMANDS, name="worker-default-io"),
            ingest=MemoryConsumer(broker, stream=topology.INGEST, name="planner-0"),
            tools=tools,
            mask=mask,
            halts=halts,
            stop=stop,
        )
