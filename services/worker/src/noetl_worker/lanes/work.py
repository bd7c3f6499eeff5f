"""The work of one command: a step, an item, or a slot; and the facts that end it."""

import asyncio
from collections.abc import Awaitable
from typing import Any, assert_never

import msgspec
import structlog

from noetl_contracts.commands import (
    ChunkWork,
    Command,
    FrameWork,
    ItemWork,
    ReduceWork,
    SlotWork,
    StepWork,
)
from noetl_contracts.errors import ErrorObject
from noetl_contracts.facts import (
    CommandCompleted,
    CommandFailed,
    CommandLost,
    CommandParked,
    CommandStopped,
    FrameClosed,
)
from noetl_contracts.parking import ELAPSED
from noetl_contracts.slicing import Form
from noetl_playbook.expressions import TemplateError
from noetl_worker.domain.failures import ToolFailure, failure, not_a_text
from noetl_worker.domain.result import SelectionTooLarge
from noetl_worker.lanes import checkpoints, parking
from noetl_worker.lanes.block import Block, compile_block
from noetl_worker.lanes.collection import read_items
from noetl_worker.lanes.emitting import Emitter, emitter_of
from noetl_worker.lanes.framebook import TakenElsewhere
from noetl_worker.lanes.framed import Framed
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.parking import FrameParked, Halted, Parked, Resumed
from noetl_worker.lanes.pipeline import Pipeline, PipelineEnd
from noetl_worker.lanes.scratch import Unit
from noetl_worker.lanes.slot import Slot
from noetl_worker.lanes.unit import Surrounding, item_names, template_failure
from noetl_worker.lanes.waves import FrameLost, lost_in_wave
from noetl_worker.reporting import Reporter
from noetl_worker.tools.call import Outcome

log = structlog.get_logger(__name__)


async def execute(
    command: Command, *, hands: Hands, reporter: Reporter, draining: asyncio.Event
) -> bool:
    """Do a command's work and queue its facts; False when it is given back unfinished."""
    try:
        return await _execute(command, hands, reporter, draining)
    except ToolFailure as problem:
        reporter.report(failed(command, hands, problem.error))
    except TemplateError as problem:
        reporter.report(failed(command, hands, template_failure(problem, step=command.step)))
    except (msgspec.ValidationError, msgspec.DecodeError) as problem:
        text = f"the definition of step '{command.step}' does not fit the model: {problem}"
        reporter.report(failed(command, hands, failure("validation", text)))
    except UnicodeEncodeError:
        reporter.report(failed(command, hands, not_a_text()))
    except FrameLost:
        reporter.report(lost_in_wave(command))
    except TakenElsewhere as problem:
        if problem.is_same_message:
            # As for any redelivery: whoever had it may be at work, so only a new attempt runs it.
            reporter.report(lost(command, "redelivered"))
        else:
            log.info("a copy of a command that runs elsewhere", step=command.step)
    return True


def failed(
    command: Command, hands: Hands, error: ErrorObject, end: PipelineEnd | None = None
) -> CommandFailed:
    """Say that a command failed."""
    placed = msgspec.structs.replace(error, step=error.step or command.step)
    return CommandFailed(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=hands.worker_id,
        error=placed,
        patch={} if end is None else end.patch,
        tasks={} if end is None else end.metrics,
    )


def lost(command: Command, reason: str, *, is_release: bool = False) -> CommandLost:
    """Say that this attempt of a command does not go on."""
    return CommandLost(
        command_id=command.command_id,
        attempt=command.attempt,
        reason=reason,
        is_release=is_release,
    )


async def _execute(
    command: Command, hands: Hands, reporter: Reporter, draining: asyncio.Event
) -> bool:
    if hands.waves is not None and isinstance(command.work, FrameWork | ReduceWork):
        in_wave = await hands.waves.run(command)
        # Its executors have journals of their own.
        await hands.tools.lender.read_entries(command)
        reporter.report(in_wave)
        return True
    block, surrounding = await prepare(command, hands)
    match command.work:
        case SlotWork() as work:
            slot = Slot(
                command=command,
                work=work,
                block=block,
                surrounding=surrounding,
                hands=hands,
                reporter=reporter,
                draining=draining,
            )
            return await _unless_parked(command, slot.run(), hands=hands, reporter=reporter)
        case ChunkWork() as work:
            unit = _activation(work, surrounding)
        case StepWork() as work:
            unit = Unit(
                site=surrounding.site(unit="step"),
                fixed={"iter": {}},
                iterators={},
                ctx=surrounding.ctx,
                may_park=True,
                emitter=emitter_of(command, work, block, hands=hands, reporter=reporter),
            )
        case ItemWork() as work:
            unit = await _item(work, surrounding, hands)
        case FrameWork() | ReduceWork() as work:
            framed = Framed(command=command, block=block, surrounding=surrounding, hands=hands)
            run = framed.slice(work) if isinstance(work, FrameWork) else framed.reduce(work)
            ended = _reported(run, reporter)
            return await _unless_parked(command, ended, hands=hands, reporter=reporter)
        case _:
            assert_never(command.work)
    try:
        return await _run_unit(command, block, unit, surrounding, hands=hands, reporter=reporter)
    finally:
        if unit.emitter is not None:
            unit.emitter.close()


async def prepare(command: Command, hands: Hands) -> tuple[Block, Surrounding]:
    """Compile a command's step and load what its templates may name; raises `ToolFailure`."""
    block = compile_block(await _definition(command, hands), command.defaults)
    surrounding = await _surrounding(command, block, hands)
    await surrounding.keychain.require()
    return block, surrounding


async def _reported(run: Awaitable[FrameClosed], reporter: Reporter) -> bool:
    reporter.report(await run)
    return True


async def _unless_parked(
    command: Command, run: Awaitable[bool], *, hands: Hands, reporter: Reporter
) -> bool:
    """Await the end of frames; when a row of one waits, keep the frame and let the command go."""
    try:
        return await run
    except FrameParked as parked:
        reporter.report(
            CommandParked(
                command_id=command.command_id,
                attempt=command.attempt,
                worker_id=hands.worker_id,
                wait=parked.saved.waiting[0].wait,
                resume_ref=await parking.keep(parked.saved, hands),
                frame_id=parked.saved.frame_id,
            )
        )
    except Halted:
        reporter.report(_halted(command, hands))
    return True


def _halted(command: Command, hands: Hands) -> CommandStopped:
    return CommandStopped(
        command_id=command.command_id, attempt=command.attempt, worker_id=hands.worker_id
    )


async def _run_unit(
    command: Command,
    block: Block,
    unit: Unit,
    surrounding: Surrounding,
    *,
    hands: Hands,
    reporter: Reporter,
) -> bool:
    pipeline = Pipeline(block=block, unit=unit, surrounding=surrounding, hands=hands)
    resumed = await _resumed(command, block, unit, hands)
    try:
        async with hands.journal.keep_lines():
            end = await pipeline.run(resumed)
    except Parked as parked:
        reporter.report(await _parked(command, pipeline, parked, hands))
        return True
    except Halted:
        reporter.report(_halted(command, hands))
        return True
    await _end(command, block, end, pipeline, hands, reporter, emitter=unit.emitter)
    return True


async def _resumed(command: Command, block: Block, unit: Unit, hands: Hands) -> Resumed | None:
    """Return where to go on: after a wait, or where an attempt that was lost last kept it."""
    resumed = None if command.resume is None else await parking.take_up(command.resume, hands)
    if not checkpoints.is_resumable(unit) or not checkpoints.has_repeats(block):
        return resumed
    since = 0 if resumed is None else resumed.saved.attempt
    saved = await checkpoints.find(command, hands, after=since)
    if saved is None:
        return resumed
    return Resumed(saved=saved, status=ELAPSED, outcome=Outcome())


async def _parked(
    command: Command, pipeline: Pipeline, parked: Parked, hands: Hands
) -> CommandParked:
    """Keep a pipeline that waits, and say what it waits for."""
    return CommandParked(
        command_id=command.command_id,
        attempt=command.attempt,
        worker_id=hands.worker_id,
        wait=parked.wait,
        resume_ref=await parking.keep(await pipeline.saved(), hands),
    )


async def _definition(command: Command, hands: Hands) -> dict[str, Any]:
    if command.definition is not None:
        return command.definition
    if command.definition_ref is None:
        raise ToolFailure(failure("internal", "the command carries no definition"))
    definition: dict[str, Any] = await hands.payloads.load(command.definition_ref)
    return definition


async def _surrounding(command: Command, block: Block, hands: Hands) -> Surrounding:
    workload = command.slice.workload
    if command.slice.workload_ref is not None:
        workload = await hands.payloads.load(command.slice.workload_ref)
    ctx = command.slice.ctx
    if command.slice.ctx_ref is not None:
        ctx = await hands.payloads.load(command.slice.ctx_ref)
    source = block.step.loop or block.step.reduce
    return Surrounding(
        command,
        workload=workload,
        ctx=ctx,
        iterator=None if source is None else source.iterator,
        clock=hands.clock,
        keyring=hands.tools.keyring,
    )


async def _item(work: ItemWork, surrounding: Surrounding, hands: Hands) -> Unit:
    item = work.item
    if work.collection_ref is not None or work.form is Form.RANGE:
        (item,) = await read_items(
            work.collection_ref,
            work.form,
            start=work.index,
            end=work.index + 1,
            payloads=hands.payloads,
        )
    fixed, iterators = item_names(surrounding, item=item, work=work)
    return Unit(
        site=surrounding.site(unit=f"item-{work.index}"),
        fixed=fixed,
        iterators=iterators,
        ctx=surrounding.ctx,
        may_park=True,
    )


def _activation(work: ChunkWork, surrounding: Surrounding) -> Unit:
    named = surrounding.chunk_names(work.chunk)
    return Unit(
        site=surrounding.site(unit=f"chunk-{work.index}"),
        fixed={"iter": {}, **named},
        iterators={},
        ctx=surrounding.ctx,
        may_park=True,
    )


async def _end(
    command: Command,
    block: Block,
    end: PipelineEnd,
    pipeline: Pipeline,
    hands: Hands,
    reporter: Reporter,
    *,
    emitter: Emitter | None,
) -> None:
    """Keep a pipeline's result and writes, then queue the fact that names them."""
    end = msgspec.structs.replace(end, patch=await hands.keeper.keep_patch(end.patch))
    status = "ok" if end.error is None else "error"
    collected, notes = block.outputs.collected, tuple(end.notes)
    try:
        output = await pipeline.output_of(end)
        if emitter is not None and emitter.is_over and end.error is None:
            envelope = await emitter.keep(
                end.result, output=output, collected=collected, notes=notes
            )
        else:
            envelope = await hands.keeper.keep(
                end.result,
                status=status,
                output=output,
                collected=collected,
                notes=notes,
                is_read=end.error is not None or not _is_uncollected(command, block),
            )
    except SelectionTooLarge as problem:
        reporter.report(failed(command, hands, failure("payload_too_large", str(problem)), end))
        return
    except ToolFailure as problem:
        reporter.report(failed(command, hands, end.error or problem.error, end))
        return
    if end.error is not None:
        fact = failed(command, hands, end.error, end)
        reporter.report(msgspec.structs.replace(fact, result=envelope))
        return
    reporter.report(
        CommandCompleted(
            command_id=command.command_id,
            attempt=command.attempt,
            worker_id=hands.worker_id,
            result=envelope,
            patch=end.patch,
            notes=end.notes,
            tries=end.tries,
            tasks=end.metrics,
        )
    )


def _is_uncollected(command: Command, block: Block) -> bool:
    """Tell whether a result is an item's whose loop keeps none and says nothing of its output."""
    step = block.step
    if not isinstance(command.work, ItemWork) or step.loop is None:
        return False
    speaks_of_output = step.output is not None or any(task.output for task in step.tool)
    return step.loop.spec.collect == "none" and not speaks_of_output
