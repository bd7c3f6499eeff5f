"""The work of one command: a step, an item, or a slot; and the facts that end it."""

import asyncio
from collections.abc import Awaitable
from typing import Any, assert_never

import structlog

from noetl_contracts.commands.command_work import (
    BatchWork,
    ChunkWork,
    Command,
    FrameWork,
    ItemWork,
    ReduceWork,
    SlotWork,
    StepWork,
)
from noetl_contracts.events import command_events
from noetl_contracts.requests.facts import (
    CommandLost,
    CommandParked,
    FrameClosed,
)
from noetl_worker.commands.command_context import (
    CommandContext,
)
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.commands.fact_publisher import AttemptReporter
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.pipeline import parked_work
from noetl_worker.pipeline.chunk_emitter import build_emitter
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline, compile_pipeline
from noetl_worker.pipeline.parked_work import (
    FrameParked,
    PipelineHalted,
)
from noetl_worker.pipeline.state import PipelineUnit
from noetl_worker.runner import unit_run
from noetl_worker.runner.frame_records import TakenElsewhere
from noetl_worker.runner.item_batch import ItemBatch
from noetl_worker.runner.planner_frames import PlannerFrame
from noetl_worker.runner.slot import Slot
from noetl_worker.runner.unit_run import build_failed, build_stopped
from noetl_worker.spark.wave_runner import FrameLost, build_wave_lost

log = structlog.get_logger(__name__)


async def run_command(
    command: Command,
    *,
    services: CommandServices,
    reporter: AttemptReporter,
    draining: asyncio.Event,
) -> bool:
    """Do a command's work and queue its facts; False when it is given back unfinished."""
    try:
        return await _dispatch_work(command, services, reporter, draining)
    except unit_run.FAILURES as problem:
        error = unit_run.describe_failure(command, problem)
        reporter.report_facts(build_failed(command, services, error))
    except FrameLost:
        reporter.report_facts(build_wave_lost(command))
    except TakenElsewhere as problem:
        if problem.is_same_message:
            # As for any redelivery: its former worker may still run it, so only a new attempt may.
            reporter.report_facts(build_lost(command, command_events.REDELIVERED))
        else:
            log.info("duplicate of a command that another worker runs", step=command.step)
    return True


def build_lost(command: Command, reason: str, *, is_release: bool = False) -> CommandLost:
    """Say that this attempt of a command does not go on."""
    return CommandLost(
        command_id=command.command_id,
        attempt=command.attempt,
        reason=reason,
        is_release=is_release,
    )


async def _dispatch_work(
    command: Command, services: CommandServices, reporter: AttemptReporter, draining: asyncio.Event
) -> bool:
    if services.waves is not None and isinstance(command.work, FrameWork | ReduceWork):
        wave_fact = await services.waves.run_command_frame(command)
        # Its executors have journals of their own.
        await services.tools.lender.read_entries(command)
        reporter.report_facts(wave_fact)
        return True
    block, context = await prepare_command(command, services)
    match command.work:
        case SlotWork() as work:
            slot = Slot(
                command=command,
                work=work,
                block=block,
                context=context,
                services=services,
                reporter=reporter,
                draining=draining,
            )
            return await _run_unless_parked(
                command, slot.run(), services=services, reporter=reporter
            )
        case ChunkWork() as work:
            unit = _build_chunk_unit(work, context)
        case StepWork() as work:
            unit = PipelineUnit(
                site=context.build_unit_scope(unit="step"),
                fixed={"iter": {}},
                iterators={},
                ctx=context.ctx,
                may_park=True,
                emitter=build_emitter(command, work, block, services=services, reporter=reporter),
            )
        case ItemWork() as work:
            unit = await unit_run.build_item_unit(work, context, services)
        case BatchWork() as work:
            batch = ItemBatch(
                command, work, block=block, context=context, services=services, reporter=reporter
            )
            await batch.run(draining)
            return True
        case FrameWork() | ReduceWork() as work:
            planner_frame = PlannerFrame(
                command=command, block=block, context=context, services=services
            )
            run = (
                planner_frame.run_slice(work)
                if isinstance(work, FrameWork)
                else planner_frame.run_reduce(work)
            )
            end_report = _report_end(run, reporter)
            return await _run_unless_parked(
                command, end_report, services=services, reporter=reporter
            )
        case _:
            assert_never(command.work)
    try:
        reporter.report_facts(await unit_run.run_unit(command, block, unit, context, services))
        return True
    finally:
        if unit.emitter is not None:
            unit.emitter.close()


async def prepare_command(
    command: Command, services: CommandServices
) -> tuple[CompiledPipeline, CommandContext]:
    """Compile a command's step and load what its templates may name; raises `ToolFailure`."""
    block = compile_pipeline(await _load_definition(command, services), command.defaults)
    context = await _load_context(command, block, services)
    await context.keychain.resolve_required()
    return block, context


async def _report_end(run: Awaitable[FrameClosed], reporter: AttemptReporter) -> bool:
    reporter.report_facts(await run)
    return True


async def _run_unless_parked(
    command: Command, run: Awaitable[bool], *, services: CommandServices, reporter: AttemptReporter
) -> bool:
    """Await the end of frames; when a row of one waits, keep the frame and let the command go."""
    try:
        return await run
    except FrameParked as parked:
        reporter.report_facts(
            CommandParked(
                command_id=command.command_id,
                attempt=command.attempt,
                worker_id=services.worker_id,
                wait=parked.saved.waiting[0].wait,
                resume_ref=await parked_work.store_parked(parked.saved, services),
                frame_id=parked.saved.frame_id,
            )
        )
    except PipelineHalted:
        reporter.report_facts(build_stopped(command, services))
    return True


async def _load_definition(command: Command, services: CommandServices) -> dict[str, Any]:
    if command.definition is not None:
        return command.definition
    if command.definition_ref is None:
        raise ToolFailure(build_error("internal", "the command carries no definition"))
    definition: dict[str, Any] = await services.payloads.load_value(command.definition_ref)
    return definition


async def _load_context(
    command: Command, block: CompiledPipeline, services: CommandServices
) -> CommandContext:
    workload = command.slice.workload
    if command.slice.workload_ref is not None:
        workload = await services.payloads.load_value(command.slice.workload_ref)
    ctx = command.slice.ctx
    if command.slice.ctx_ref is not None:
        ctx = await services.payloads.load_value(command.slice.ctx_ref)
    source = block.step.loop or block.step.reduce
    return CommandContext(
        command,
        workload=workload,
        ctx=ctx,
        iterator=None if source is None else source.iterator,
        clock=services.clock,
        keyring=services.tools.keyring,
    )


def _build_chunk_unit(work: ChunkWork, context: CommandContext) -> PipelineUnit:
    chunk_names = context.build_chunk_names(work.chunk)
    return PipelineUnit(
        site=context.build_unit_scope(unit=f"chunk-{work.index}"),
        fixed={"iter": {}, **chunk_names},
        iterators={},
        ctx=context.ctx,
        may_park=True,
    )
