"""The work of one command: a step, an item, or a slot; and the facts that end it."""

import asyncio
from collections.abc import Awaitable
from typing import Any, assert_never

import msgspec
import structlog

from noetl_contracts.commands.command_work import (
    ChunkWork,
    Command,
    FrameWork,
    ItemWork,
    ReduceWork,
    SlotWork,
    StepWork,
)
from noetl_contracts.commands.loop_collections import CollectionForm
from noetl_contracts.commands.waits import ELAPSED
from noetl_contracts.errors import ErrorObject
from noetl_contracts.requests.facts import (
    CommandCompleted,
    CommandFailed,
    CommandLost,
    CommandParked,
    CommandStopped,
    FrameClosed,
)
from noetl_playbook.templates.expressions import TemplateError
from noetl_worker.commands.command_context import (
    CommandContext,
    build_item_names,
    build_template_error,
)
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.commands.fact_publisher import AttemptReporter
from noetl_worker.domain.failures import ToolFailure, build_broken_text_error, build_error
from noetl_worker.domain.result import SelectionTooLarge
from noetl_worker.pipeline import checkpoints, parked_work
from noetl_worker.pipeline.chunk_emitter import ChunkEmitter, build_emitter
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline, compile_pipeline
from noetl_worker.pipeline.interpreter import Pipeline, PipelineEnd
from noetl_worker.pipeline.parked_work import (
    FrameParked,
    PipelineHalted,
    PipelineParked,
    ResumedPipeline,
)
from noetl_worker.pipeline.state import PipelineUnit
from noetl_worker.runner.frame_records import TakenElsewhere
from noetl_worker.runner.planner_frames import PlannerFrame, read_items
from noetl_worker.runner.slot import Slot
from noetl_worker.spark.wave_runner import FrameLost, build_wave_lost
from noetl_worker.tools.calls.call import Outcome

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
    except ToolFailure as problem:
        reporter.report_facts(build_failed(command, services, problem.error))
    except TemplateError as problem:
        reporter.report_facts(
            build_failed(command, services, build_template_error(problem, step=command.step))
        )
    except (msgspec.ValidationError, msgspec.DecodeError) as problem:
        text = f"the definition of step '{command.step}' does not fit the model: {problem}"
        reporter.report_facts(build_failed(command, services, build_error("validation", text)))
    except UnicodeEncodeError:
        reporter.report_facts(build_failed(command, services, build_broken_text_error()))
    except FrameLost:
        reporter.report_facts(build_wave_lost(command))
    except TakenElsewhere as problem:
        if problem.is_same_message:
            # As for any redelivery: its former worker may still run it, so only a new attempt may.
            reporter.report_facts(build_lost(command, "redelivered"))
        else:
            log.info("duplicate of a command that another worker runs", step=command.step)
    return True


def build_failed(
    command: Command, services: CommandServices, error: ErrorObject, end: PipelineEnd | None = None
) -> CommandFailed:
    """Say that a command failed."""
    placed = msgspec.structs.replace(error, step=error.step or command.step)
    return CommandFailed(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=services.worker_id,
        error=placed,
        patch={} if end is None else end.patch,
        tasks={} if end is None else end.metrics,
    )


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
        in_wave = await services.waves.run_command_frame(command)
        # Its executors have journals of their own.
        await services.tools.lender.read_entries(command)
        reporter.report_facts(in_wave)
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
            unit = await _build_item_unit(work, context, services)
        case FrameWork() | ReduceWork() as work:
            framed = PlannerFrame(command=command, block=block, context=context, services=services)
            run = framed.run_slice(work) if isinstance(work, FrameWork) else framed.run_reduce(work)
            ended = _report_end(run, reporter)
            return await _run_unless_parked(command, ended, services=services, reporter=reporter)
        case _:
            assert_never(command.work)
    try:
        return await _run_unit(command, block, unit, context, services=services, reporter=reporter)
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
        reporter.report_facts(_build_stopped(command, services))
    return True


def _build_stopped(command: Command, services: CommandServices) -> CommandStopped:
    return CommandStopped(
        command_id=command.command_id, attempt=command.attempt, worker_id=services.worker_id
    )


async def _run_unit(
    command: Command,
    block: CompiledPipeline,
    unit: PipelineUnit,
    context: CommandContext,
    *,
    services: CommandServices,
    reporter: AttemptReporter,
) -> bool:
    pipeline = Pipeline(block=block, unit=unit, context=context, services=services)
    resumed = await _find_resume_point(command, block, unit, services)
    try:
        async with services.journal.keep_lines():
            end = await pipeline.run(resumed)
    except PipelineParked as parked:
        reporter.report_facts(await _build_parked(command, pipeline, parked, services))
        return True
    except PipelineHalted:
        reporter.report_facts(_build_stopped(command, services))
        return True
    await _store_and_report(command, block, end, pipeline, services, reporter, emitter=unit.emitter)
    return True


async def _find_resume_point(
    command: Command, block: CompiledPipeline, unit: PipelineUnit, services: CommandServices
) -> ResumedPipeline | None:
    """Return where to go on: after a wait, or where an attempt that was lost last kept it."""
    resumed = (
        None
        if command.resume is None
        else await parked_work.load_parked_pipeline(command.resume, services)
    )
    if not checkpoints.is_resumable(unit) or not checkpoints.has_repeats(block):
        return resumed
    since = 0 if resumed is None else resumed.saved.attempt
    saved = await checkpoints.find_checkpoint(command, services, after=since)
    if saved is None:
        return resumed
    return ResumedPipeline(saved=saved, status=ELAPSED, outcome=Outcome())


async def _build_parked(
    command: Command, pipeline: Pipeline, parked: PipelineParked, services: CommandServices
) -> CommandParked:
    """Keep a pipeline that waits, and say what it waits for."""
    return CommandParked(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=services.worker_id,
        wait=parked.wait,
        resume_ref=await parked_work.store_parked(await pipeline.build_saved(), services),
    )


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


async def _build_item_unit(
    work: ItemWork, context: CommandContext, services: CommandServices
) -> PipelineUnit:
    item = work.item
    if work.collection_ref is not None or work.form is CollectionForm.RANGE:
        (item,) = await read_items(
            work.collection_ref,
            work.form,
            start=work.index,
            end=work.index + 1,
            payloads=services.payloads,
        )
    fixed, iterators = build_item_names(context, item=item, work=work)
    return PipelineUnit(
        site=context.build_unit_scope(unit=f"item-{work.index}"),
        fixed=fixed,
        iterators=iterators,
        ctx=context.ctx,
        may_park=True,
    )


def _build_chunk_unit(work: ChunkWork, context: CommandContext) -> PipelineUnit:
    named = context.build_chunk_names(work.chunk)
    return PipelineUnit(
        site=context.build_unit_scope(unit=f"chunk-{work.index}"),
        fixed={"iter": {}, **named},
        iterators={},
        ctx=context.ctx,
        may_park=True,
    )


async def _store_and_report(
    command: Command,
    block: CompiledPipeline,
    end: PipelineEnd,
    pipeline: Pipeline,
    services: CommandServices,
    reporter: AttemptReporter,
    *,
    emitter: ChunkEmitter | None,
) -> None:
    """Keep a pipeline's result and writes, then queue the fact that names them."""
    end = msgspec.structs.replace(end, patch=await services.keeper.store_patch(end.patch))
    status = "ok" if end.error is None else "error"
    collected, notes = block.outputs.collected, tuple(end.notes)
    try:
        output = await pipeline.render_step_output(end)
        if emitter is not None and emitter.is_over and end.error is None:
            envelope = await emitter.store_result(
                end.result, output=output, collected=collected, notes=notes
            )
        else:
            envelope = await services.keeper.store_result(
                end.result,
                status=status,
                output=output,
                collected=collected,
                notes=notes,
                is_read=end.error is not None or not _is_uncollected(command, block),
            )
    except SelectionTooLarge as problem:
        reporter.report_facts(
            build_failed(command, services, build_error("payload_too_large", str(problem)), end)
        )
        return
    except ToolFailure as problem:
        reporter.report_facts(build_failed(command, services, end.error or problem.error, end))
        return
    if end.error is not None:
        fact = build_failed(command, services, end.error, end)
        reporter.report_facts(msgspec.structs.replace(fact, result=envelope))
        return
    reporter.report_facts(
        CommandCompleted(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=services.worker_id,
            result=envelope,
            patch=end.patch,
            notes=end.notes,
            tries=end.tries,
            tasks=end.metrics,
            state=end.state,
        )
    )


def _is_uncollected(command: Command, block: CompiledPipeline) -> bool:
    """Tell whether a result is an item's whose loop keeps none and says nothing of its output."""
    step = block.step
    if not isinstance(command.work, ItemWork) or step.loop is None:
        return False
    speaks_of_output = step.output is not None or any(task.output for task in step.tool)
    return step.loop.spec.collect == "none" and not speaks_of_output
