"""Frames that the planner minted: a slice of a collection, or a group of parts to reduce."""

from msgspec import Struct

from noetl_contracts import codec
from noetl_contracts.commands import Command, FrameWork, ReduceWork
from noetl_contracts.facts import FrameClosed
from noetl_contracts.slicing import Layout
from noetl_playbook import carried
from noetl_playbook.model import Output
from noetl_playbook.parts import Part, PartView, PartViews
from noetl_worker.domain import frames
from noetl_worker.domain.failures import ToolFailure, failure
from noetl_worker.domain.frames import Frame, Sliced
from noetl_worker.domain.result import SelectionTooLarge
from noetl_worker.lanes import parking
from noetl_worker.lanes.block import Block
from noetl_worker.lanes.closing import closed
from noetl_worker.lanes.collection import read_items
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.inside import counted, run_inside, shard_key
from noetl_worker.lanes.once import run_once
from noetl_worker.lanes.parking import FrameParked, Parked, SavedFrame, WaitingRow
from noetl_worker.lanes.pipeline import Pipeline, PipelineEnd
from noetl_worker.lanes.scratch import Unit
from noetl_worker.lanes.unit import Surrounding, part_names


class Framed(Struct, frozen=True, kw_only=True):
    """One command that is one frame, and all that running it needs."""

    command: Command
    block: Block
    surrounding: Surrounding
    hands: Hands

    async def slice(self, work: FrameWork) -> FrameClosed:
        """Run a frame over its slice; raises `ToolFailure` when it cannot be run at all."""
        layout = await self._layout(work)
        frame = await self._frame(work, layout)
        if frame.policy.inside is not None:
            return await self._local(frame, layout)
        result = await run_once(
            frame,
            block=self.block,
            surrounding=self.surrounding,
            hands=self.hands,
            may_leave_rows=not work.is_shard,
            resume=self.command.resume,
        )
        envelope = result.kept
        if envelope is None and self._collects:
            envelope = await self.hands.keeper.keep_list(result.results)
        return closed(self.command, self.hands, frame, result, envelope)

    async def _local(self, frame: Frame, layout: Layout | None) -> FrameClosed:
        """Run a whole loop; what its units gave is kept unit by unit."""
        result, ended = await run_inside(
            frame,
            block=self.block,
            surrounding=self.surrounding,
            hands=self.hands,
            layout=layout,
        )
        units = await counted(ended, hands=self.hands, keeps=self._collects)
        return closed(self.command, self.hands, frame, result, None, units)

    @property
    def _collects(self) -> bool:
        loop = self.block.step.loop
        return loop is not None and loop.spec.collect == "all"

    async def reduce(self, work: ReduceWork) -> FrameClosed:
        """Run the body once over a group of parts; raises `ToolFailure`."""
        listed = await self.hands.payloads.load(work.parts_ref)
        found = self.surrounding.find
        views = PartViews(
            [
                PartView(
                    codec.convert(part, Part), open_part=lambda one: carried.part_data(one, found)
                )
                for part in listed[work.start : work.end]
            ]
        )
        fixed, iterators = part_names(self.surrounding, work, views)
        site = self.surrounding.site(unit=work.frame_id, frame_id=work.frame_id)
        unit = Unit(
            site=site,
            fixed=fixed,
            iterators=iterators,
            ctx=self.surrounding.ctx,
            may_park=True,
            place=f"{work.attempt}.group",
        )
        pipeline = Pipeline(
            block=self.block, unit=unit, surrounding=self.surrounding, hands=self.hands
        )
        resumed = None
        if self.command.resume is not None:
            _, resumed = await parking.take_up_frame(self.command.resume, self.hands)
        try:
            async with self.hands.journal.keep_lines():
                end = await pipeline.run(resumed)
        except Parked as parked:
            row = WaitingRow(index=None, saved=await pipeline.saved(), wait=parked.wait)
            raise FrameParked(SavedFrame(frame_id=work.frame_id, waiting=[row], next=0)) from None
        return await self._reduced(work, end, await pipeline.output_of(end))

    async def _reduced(
        self, work: ReduceWork, end: PipelineEnd, output: Output | None
    ) -> FrameClosed:
        count = work.end - work.start
        try:
            envelope = await self.hands.keeper.keep(
                end.result,
                status="ok" if end.error is None else "error",
                output=output,
                collected=self.block.outputs.collected,
            )
        except SelectionTooLarge as problem:
            raise ToolFailure(failure("payload_too_large", str(problem))) from problem
        return FrameClosed(
            command_id=self.command.command_id,
            attempt=self.command.attempt,
            worker_id=self.hands.worker_id,
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

    async def _layout(self, work: FrameWork) -> Layout | None:
        if work.layout_ref is None:
            return None
        return codec.convert(await self.hands.payloads.load(work.layout_ref), Layout)

    async def _frame(self, work: FrameWork, layout: Layout | None) -> Frame:
        if work.collection_ref is None:
            raise ToolFailure(failure("internal", "the command names no collection"))
        rows = await read_items(
            work.collection_ref,
            work.form,
            start=work.start,
            end=work.end,
            payloads=self.hands.payloads,
        )
        policy = frames.policy_of(work.frame)
        indices = None if layout is None else layout.order[work.start : work.end]
        sliced = Sliced(
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
        key = await shard_key(frame, self.block, self.surrounding, self.hands)
        return frames.keyed(frame, key)
