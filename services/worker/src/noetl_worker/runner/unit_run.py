"""The run of one unit of a command: a step, an item or a chunk; and the facts that end it."""

import msgspec

from noetl_contracts.commands.command_work import Command, ItemWork
from noetl_contracts.commands.loop_collections import CollectionForm
from noetl_contracts.commands.task_metrics import ELAPSED_MS, MetricsByTask
from noetl_contracts.commands.waits import ELAPSED
from noetl_contracts.errors import ErrorObject
from noetl_contracts.requests.facts import (
    CommandCompleted,
    CommandFailed,
    CommandParked,
    CommandStopped,
)
from noetl_playbook.templates.expressions import TemplateError
from noetl_worker.commands.command_context import (
    CommandContext,
    build_item_names,
    build_template_error,
)
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.domain.failures import ToolFailure, build_broken_text_error, build_error
from noetl_worker.domain.result import SelectionTooLarge
from noetl_worker.pipeline import checkpoints, parked_work
from noetl_worker.pipeline.chunk_emitter import ChunkEmitter
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline
from noetl_worker.pipeline.interpreter import Pipeline, PipelineEnd
from noetl_worker.pipeline.parked_work import PipelineHalted, PipelineParked, ResumedPipeline
from noetl_worker.pipeline.state import PipelineUnit
from noetl_worker.runner.planner_frames import read_items
from noetl_worker.tools.calls.call import Outcome

# What a command or an item may raise that it fails with.
FAILURES = (
    ToolFailure,
    TemplateError,
    msgspec.ValidationError,
    msgspec.DecodeError,
    UnicodeEncodeError,
)


def build_failed(
    command: Command, services: CommandServices, error: ErrorObject, end: PipelineEnd | None = None
) -> CommandFailed:
    """Say that a command failed."""
    placed_error = msgspec.structs.replace(error, step=error.step or command.step)
    return CommandFailed(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=services.worker_id,
        error=placed_error,
        patch={} if end is None else end.patch,
        tasks={} if end is None else end.metrics,
    )


def describe_failure(command: Command, problem: Exception) -> ErrorObject:
    """Return what one of `FAILURES` tells."""
    match problem:
        case ToolFailure():
            return problem.error
        case TemplateError():
            return build_template_error(problem, step=command.step)
        case UnicodeEncodeError():
            return build_broken_text_error()
        case _:
            text = f"the definition of step '{command.step}' does not fit the model: {problem}"
            return build_error("validation", text)


def build_stopped(command: Command, services: CommandServices) -> CommandStopped:
    """Say that a command was stopped as its execution is being cancelled."""
    return CommandStopped(
        command_id=command.command_id, attempt=command.attempt, worker_id=services.worker_id
    )


UnitEndFact = CommandCompleted | CommandFailed | CommandParked | CommandStopped


async def run_unit(
    command: Command,
    block: CompiledPipeline,
    unit: PipelineUnit,
    context: CommandContext,
    services: CommandServices,
) -> UnitEndFact:
    """Run a unit's pipeline, keep what it gave, and return the fact that ends it.

    Raises one of `FAILURES` where it cannot be run.
    """
    began_s = services.clock.monotonic_s()
    pipeline = Pipeline(block=block, unit=unit, context=context, services=services)
    resumed = await _find_resume_point(command, block, unit, services)
    try:
        async with services.journal.keep_lines():
            end = await pipeline.run(resumed)
    except PipelineParked as parked:
        return await _build_parked(command, pipeline, parked, services)
    except PipelineHalted:
        return build_stopped(command, services)
    fact = await _store_end(command, block, end, pipeline, services, emitter=unit.emitter)
    if isinstance(fact, CommandCompleted) and isinstance(command.work, ItemWork):
        elapsed_ms = _measure_item(fact.tasks, services.clock.monotonic_s() - began_s)
        return msgspec.structs.replace(fact, metrics={**fact.metrics, ELAPSED_MS: elapsed_ms})
    return fact


def _measure_item(tasks: MetricsByTask, wall_s: float) -> int:
    """Return how many milliseconds an item takes, waits between its tries included.

    Of one without them the tasks alone count: the rest is its turn beside others of this worker.
    """
    if any(metrics.attempts > 1 for metrics in tasks.values()):
        return round(wall_s * 1_000)
    return sum(metrics.duration_ms for metrics in tasks.values())


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
    checkpoint = await checkpoints.find_checkpoint(command, services, after=since)
    if checkpoint is None:
        return resumed
    return ResumedPipeline(saved=checkpoint, status=ELAPSED, outcome=Outcome())


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


async def build_item_unit(
    work: ItemWork, context: CommandContext, services: CommandServices
) -> PipelineUnit:
    """Prepare the run of one item, read where its collection is stored; raises `ToolFailure`."""
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


async def _store_end(
    command: Command,
    block: CompiledPipeline,
    end: PipelineEnd,
    pipeline: Pipeline,
    services: CommandServices,
    *,
    emitter: ChunkEmitter | None,
) -> CommandCompleted | CommandFailed:
    """Keep a pipeline's result and writes, and return the fact that names them."""
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
        return build_failed(command, services, build_error("payload_too_large", str(problem)), end)
    except ToolFailure as problem:
        return build_failed(command, services, end.error or problem.error, end)
    if end.error is not None:
        fact = build_failed(command, services, end.error, end)
        return msgspec.structs.replace(fact, result=envelope)
    return CommandCompleted(
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


def _is_uncollected(command: Command, block: CompiledPipeline) -> bool:
    """Tell whether a result is an item's whose loop keeps none and says nothing of its output."""
    step = block.step
    if not isinstance(command.work, ItemWork) or step.loop is None:
        return False
    speaks_of_output = step.output is not None or any(task.output for task in step.tool)
    return step.loop.spec.collect == "none" and not speaks_of_output
