"""Runs frames that the planner cut: slices of a loop's collection, local loops and reduces."""

from typing import Any

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands.command_work import Command, FrameWork, ReduceWork
from noetl_contracts.commands.loop_collections import (
    CollectionForm,
    CollectionLayout,
    ListPart,
    PartList,
    encode_list_parts,
)
from noetl_contracts.payloads import JSON_MEDIA_TYPE, PayloadRef
from noetl_contracts.requests.facts import FrameClosed
from noetl_playbook.model.playbook import Output
from noetl_playbook.views import result_envelope
from noetl_playbook.views.loop_parts import LoopPart, LoopPartList, LoopPartView
from noetl_worker.commands.command_context import CommandContext, build_part_names
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.domain import frames
from noetl_worker.domain.failures import ToolFailure, build_error
from noetl_worker.domain.frames import CollectionSlice, Frame
from noetl_worker.domain.result import SelectionTooLarge
from noetl_worker.payloads.tenant_payloads import TenantPayloads
from noetl_worker.pipeline import parked_work
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline
from noetl_worker.pipeline.interpreter import Pipeline, PipelineEnd
from noetl_worker.pipeline.parked_work import FrameParked, PipelineParked, SavedFrame, WaitingRow
from noetl_worker.pipeline.state import PipelineUnit
from noetl_worker.runner.frame_outcome import build_frame_closed
from noetl_worker.runner.local_loop import build_units_end, render_shard_key, run_local_loop
from noetl_worker.runner.transactional_frame import run_frame_once

# A larger payload is cut into parts before it is read item by item.
WHOLE_BYTES_MAX = 8 * 1024 * 1024


async def read_items(
    reference: PayloadRef | None,
    form: CollectionForm,
    *,
    start: int,
    end: int,
    payloads: TenantPayloads,
) -> list[Any]:
    """Return the items from `start` up to `end`; raises `ToolFailure`."""
    if form is CollectionForm.RANGE:
        return list(range(start, end))
    if reference is None:
        raise ToolFailure(build_error("internal", "the command names no collection"))
    if form is CollectionForm.PARTS:
        manifest = codec.convert_value(await payloads.load_value(reference), PartList)
        return await _read_from_parts(manifest, start, end, payloads)
    if reference.payload_bytes > WHOLE_BYTES_MAX:
        return await _read_from_parts(
            await _split_into_parts(reference, form, payloads), start, end, payloads
        )
    data = await payloads.load_value(reference)
    rows = (
        data if form is CollectionForm.LIST else result_envelope.list_result_rows(str(form), data)
    )
    if end > len(rows):
        text = f"the collection has {len(rows)} items and not {end}"
        raise ToolFailure(build_error("internal", text))
    return rows[start:end]


async def _split_into_parts(
    reference: PayloadRef, form: CollectionForm, payloads: TenantPayloads
) -> PartList:
    """Cut a large result into parts, once for all units of all workers."""
    name = f"slices/{reference.sha256}"
    known_names = await payloads.load_named(name)
    if known_names is not None:
        return codec.convert_value(known_names, PartList)
    data = await payloads.load_value(reference)
    rows = (
        data if form is CollectionForm.LIST else result_envelope.list_result_rows(str(form), data)
    )
    parts: list[ListPart] = []
    for start, end, part in encode_list_parts(rows):
        ref = await payloads.store_payload(part, media_type=JSON_MEDIA_TYPE, row_count=end - start)
        parts.append(ListPart(start=start, end=end, ref=ref))
    encoded_parts = codec.encode_json(PartList(total=len(rows), parts=parts))
    # If another process wrote it first, it has cut the same rows at the same places.
    return codec.decode_as(await payloads.put_named(name, encoded_parts) or encoded_parts, PartList)


async def _read_from_parts(
    manifest: PartList, start: int, end: int, payloads: TenantPayloads
) -> list[Any]:
    parts: list[Any] = []
    for part in manifest.parts:
        if part.start < end and part.end > start:
            items = await payloads.load_value(part.ref)
            parts += items[max(0, start - part.start) : end - part.start]
    return parts


class PlannerFrame(Struct, frozen=True, kw_only=True):
    """One command that is one frame, and all that running it needs."""

    command: Command
    block: CompiledPipeline
    context: CommandContext
    services: CommandServices

    async def run_slice(self, work: FrameWork) -> FrameClosed:
        """Run a frame over its slice; raises `ToolFailure` when it cannot be run at all."""
        layout = await self._load_layout(work)
        frame = await self._build_frame(work, layout)
        if frame.policy.inside is not None:
            return await self._run_local_loop(frame, layout)
        result = await run_frame_once(
            frame,
            block=self.block,
            context=self.context,
            services=self.services,
            may_leave_rows=not work.is_shard,
            resume=self.command.resume,
        )
        envelope = result.kept
        if envelope is None and self._collects_results:
            envelope = await self.services.keeper.store_row_results(result.results)
        return build_frame_closed(self.command, self.services, frame, result, envelope)

    async def _run_local_loop(self, frame: Frame, layout: CollectionLayout | None) -> FrameClosed:
        """Run an `exec: local` loop as one frame; store the results of its units one by one."""
        result, unit_ends = await run_local_loop(
            frame,
            block=self.block,
            context=self.context,
            services=self.services,
            layout=layout,
        )
        units = await build_units_end(
            unit_ends, services=self.services, keeps=self._collects_results
        )
        return build_frame_closed(self.command, self.services, frame, result, None, units)

    @property
    def _collects_results(self) -> bool:
        loop = self.block.step.loop
        return loop is not None and loop.spec.collect == "all"

    async def run_reduce(self, work: ReduceWork) -> FrameClosed:
        """Run the body once over a group of parts; raises `ToolFailure`."""
        stored_parts = await self.services.payloads.load_value(work.parts_ref)
        find_value = self.context.find
        views = LoopPartList(
            [
                LoopPartView(
                    codec.convert_value(part, LoopPart),
                    open_part=lambda loop_part: result_envelope.build_part_output(
                        loop_part, find_value
                    ),
                )
                for part in stored_parts[work.start : work.end]
            ]
        )
        fixed, iterators = build_part_names(self.context, work, views)
        site = self.context.build_unit_scope(unit=work.frame_id, frame_id=work.frame_id)
        unit = PipelineUnit(
            site=site,
            fixed=fixed,
            iterators=iterators,
            ctx=self.context.ctx,
            may_park=True,
            place=f"{work.attempt}.group",
        )
        pipeline = Pipeline(
            block=self.block, unit=unit, context=self.context, services=self.services
        )
        resumed = None
        if self.command.resume is not None:
            _, resumed = await parked_work.load_parked_frame(self.command.resume, self.services)
        try:
            async with self.services.journal.keep_lines():
                end = await pipeline.run(resumed)
        except PipelineParked as parked:
            row = WaitingRow(index=None, saved=await pipeline.build_saved(), wait=parked.wait)
            raise FrameParked(SavedFrame(frame_id=work.frame_id, waiting=[row], next=0)) from None
        return await self._build_reduced(work, end, await pipeline.render_step_output(end))

    async def _build_reduced(
        self, work: ReduceWork, end: PipelineEnd, output: Output | None
    ) -> FrameClosed:
        count = work.end - work.start
        try:
            envelope = await self.services.keeper.store_result(
                end.result,
                status="ok" if end.error is None else "error",
                output=output,
                collected=self.block.outputs.collected,
            )
        except SelectionTooLarge as problem:
            raise ToolFailure(build_error("payload_too_large", str(problem))) from problem
        return FrameClosed(
            command_id=self.command.command_id,
            attempt=self.command.attempt,
            worker_id=self.services.worker_id,
            stage_id=work.stage_id,
            frame_id=work.frame_id,
            slot=work.unit,
            frame_index=work.level,
            row_count=count,
            rows_failed=count if end.error is not None else 0,
            error=end.error,
            result=envelope,
            patch=end.patch,
            tasks=end.metrics,
        )

    async def _load_layout(self, work: FrameWork) -> CollectionLayout | None:
        if work.layout_ref is None:
            return None
        return codec.convert_value(
            await self.services.payloads.load_value(work.layout_ref), CollectionLayout
        )

    async def _build_frame(self, work: FrameWork, layout: CollectionLayout | None) -> Frame:
        if work.collection_ref is None:
            raise ToolFailure(build_error("internal", "the command names no collection"))
        rows = await read_items(
            work.collection_ref,
            work.form,
            start=work.start,
            end=work.end,
            payloads=self.services.payloads,
        )
        policy = frames.parse_policy(work.frame)
        indices = None if layout is None else layout.order[work.start : work.end]
        sliced = CollectionSlice(
            total=work.total,
            done=work.done,
            failed=work.failed,
            indices=indices,
            shard_key=str(work.unit) if work.is_shard else None,
        )
        frame = Frame(
            frame_id=work.frame_id,
            root_frame_id=work.root_frame_id,
            stage_id=work.stage_id,
            slot=work.unit,
            frame_index=work.frame_index,
            base_index=work.start,
            attempt=work.attempt,
            rows_ref=work.collection_ref,
            rows=rows,
            policy=policy,
            policy_names=work.frame,
            sliced=sliced,
            may_flush=policy.inside is None,
            may_park=policy.inside is None and not policy.transaction,
        )
        if not work.is_shard:
            return frame
        key = await render_shard_key(frame, self.block, self.context, self.services)
        return frames.with_shard_key(frame, key)
