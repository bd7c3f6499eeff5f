"""Loops that are one command (`exec: local`): a frame cut into units that run side by side here."""

import asyncio
from typing import Any

from msgspec import Struct, structs

from noetl_chassis.task_group import open_task_group
from noetl_contracts import codec, ids
from noetl_contracts.commands.loop_collections import CollectionLayout, InnerCut, UnitsEnd
from noetl_contracts.commands.task_metrics import MetricsByTask, add_task_metrics
from noetl_contracts.errors import KINDS_NOT_RETRIED, ErrorObject
from noetl_contracts.ids import FrameId
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_playbook.templates.expressions import compile_value
from noetl_playbook.views.loop_parts import LoopPart
from noetl_worker.commands.command_context import CommandContext, build_frame_names, render_field
from noetl_worker.commands.command_services import CommandServices
from noetl_worker.domain import frames
from noetl_worker.domain.frames import CollectionSlice, Frame, FrameResult
from noetl_worker.pipeline.compiled_tasks import CompiledPipeline
from noetl_worker.runner.transactional_frame import run_frame_once

_RETRY_WAIT_S = 1.0
_RETRY_WAIT_MAX_S = 60.0


class UnitEnd(Struct, frozen=True, kw_only=True):
    """What became of one unit, its continuations added up."""

    unit: int
    result: FrameResult
    key: str
    row_count: int
    is_single: bool
    retried: int = 0


async def run_local_loop(
    frame: Frame,
    *,
    block: CompiledPipeline,
    context: CommandContext,
    services: CommandServices,
    layout: CollectionLayout | None = None,
) -> tuple[FrameResult, list[UnitEnd | None]]:
    """Run a frame unit by unit, as its policy cuts it; a unit that never ended is None."""
    inside = frame.policy.inside
    assert inside is not None, "only frames that are cut come here"
    run = _LoopRun(
        frame, inside=inside, layout=layout, block=block, context=context, services=services
    )
    await run.run_all_units()
    return run.build_outcome(), run.ended


async def build_units_end(
    optional_ends: list[UnitEnd | None], *, services: CommandServices, keeps: bool
) -> UnitsEnd:
    """Count units for the ledger, and keep what each gave if the loop collects it."""
    unit_ends = [unit_end for unit_end in optional_ends if unit_end is not None]
    failed = sum(item.result.error is not None for item in unit_ends)
    parts_ref = None
    if keeps:
        parts = [
            await _build_part(index, item, services) for index, item in enumerate(optional_ends)
        ]
        parts_ref = await services.payloads.store_payload(
            codec.encode_json(parts), media_type=JSON_MEDIA_TYPE, row_count=len(parts)
        )
    return UnitsEnd(
        ok=len(unit_ends) - failed,
        failed=failed,
        retried=sum(item.retried for item in unit_ends),
        parts_ref=parts_ref,
    )


async def _build_part(index: int, end: UnitEnd | None, services: CommandServices) -> LoopPart:
    if end is None:
        return LoopPart(index=index, key=str(index), status="cancelled")
    error = end.result.error
    return LoopPart(
        index=index,
        key=end.key,
        status="ok" if error is None else "error",
        result=await services.keeper.store_row_results(end.result.results),
        error=None if error is None else codec.to_builtins(services.mask.mask_error(error)),
        row_count=end.row_count,
        is_single=end.is_single,
    )


class _LoopRun:
    """Runs the units of a loop in their order, as many at once as its limit allows."""

    def __init__(
        self,
        frame: Frame,
        *,
        inside: InnerCut,
        layout: CollectionLayout | None,
        block: CompiledPipeline,
        context: CommandContext,
        services: CommandServices,
    ) -> None:
        self._frame = frame
        self._inside = inside
        self._offsets = None if layout is None else layout.offsets
        self._cut = inside.cut_items(len(frame.rows))
        self._block = block
        self._context = context
        self._services = services
        self._next = 0
        self._patch: dict[str, Any] = {}
        self._error: ErrorObject | None = None
        self._lanes: list[asyncio.Task[None]] = []
        self._started_at = services.clock.monotonic_s()
        self.ended: list[UnitEnd | None] = [None] * self._cut.units

    async def run_all_units(self) -> None:
        """Run every unit, or until too many have failed."""
        async with open_task_group() as group:
            for _ in range(min(self._inside.in_flight, self._cut.units)):
                self._lanes.append(group.create_task(self._run_lane()))

    async def _run_lane(self) -> None:
        while self._next < self._cut.units:
            unit = self._next
            self._next += 1
            end = await self._run_unit(unit)
            self.ended[unit] = end
            self._patch.update(end.result.patch)
            self._error = self._error or end.result.error
            if self._has_failed_too_often():
                self._stop_lanes()
            # Units that wait for nothing would never hear that they are to stop.
            await asyncio.sleep(0)

    async def _run_unit(self, unit: int) -> UnitEnd:
        """Run a unit to its end; a shard that failed is tried again after a wait."""
        tries = 0
        while True:
            tries += 1
            first = await self._build_first_frame(unit, attempt=tries)
            end = await self._run_frames(unit, first)
            error = end.error
            if error is None or tries >= self._inside.attempts_max:
                break
            if error.kind in KINDS_NOT_RETRIED:
                break
            await asyncio.sleep(min(_RETRY_WAIT_S * 2 ** (tries - 1), _RETRY_WAIT_MAX_S))
        counts_frames = first.policy.process == "frame"
        return UnitEnd(
            unit=unit,
            result=end,
            key=self._get_unit_key(first),
            row_count=len(first.rows),
            is_single=counts_frames or (self._inside.is_shard and len(first.rows) == 1),
            retried=tries - 1,
        )

    async def _run_frames(self, unit: int, frame: Frame) -> FrameResult:
        """Run a unit's frame, and its rows that are left as frames of their own."""
        context = self._context.with_ctx_patch(self._patch)
        frame_results: list[FrameResult] = []
        while True:
            result = await run_frame_once(
                frame,
                block=self._block,
                context=context,
                services=self._services,
                may_leave_rows=not self._inside.is_shard,
            )
            frame_results.append(result)
            if not result.remaining:
                return _add_up_results(frame_results)
            context = context.with_ctx_patch(result.patch)
            frame = self._build_continuation(unit, frame, len(result.remaining))

    def _build_continuation(self, unit: int, frame: Frame, rows_left: int) -> Frame:
        index = frame.frame_index + 1
        return self._cut_frame(
            unit,
            index,
            first=frame.base_index - self._frame.base_index + len(frame.rows) - rows_left,
            end=frame.base_index - self._frame.base_index + len(frame.rows),
            attempt=frame.attempt,
            parent=frame.frame_id,
        )

    async def _build_first_frame(self, unit: int, *, attempt: int) -> Frame:
        first, end = self._cut.get_unit_bounds(unit, self._offsets)
        frame = self._cut_frame(unit, 0, first=first, end=end, attempt=attempt, parent=None)
        if not self._inside.is_shard:
            return frame
        return frames.with_shard_key(
            frame, await render_shard_key(frame, self._block, self._context, self._services)
        )

    def _cut_frame(
        self,
        unit: int,
        index: int,
        *,
        first: int,
        end: int,
        attempt: int,
        parent: FrameId | None,
    ) -> Frame:
        frame = self._frame
        names = {key: item for key, item in frame.policy_names.items() if key != "inside"}
        return structs.replace(
            frame,
            frame_id=ids.derive_inner_frame_id(frame.frame_id, unit=unit, frame_index=index),
            root_frame_id=ids.derive_inner_frame_id(frame.frame_id, unit=unit, frame_index=0),
            slot=unit,
            frame_index=index,
            base_index=frame.base_index + first,
            attempt=attempt,
            rows=frame.rows[first:end],
            policy=structs.replace(frame.policy, inside=None, failed_max=None),
            policy_names=names
            if self._inside.size is None
            else {**names, "max_rows": self._inside.size},
            parent_frame_id=parent,
            sliced=self._build_slice(unit, first, end),
        )

    def _build_slice(self, unit: int, first: int, end: int) -> CollectionSlice | None:
        collection_slice = self._frame.sliced
        if collection_slice is None:
            return None
        _, done_count, failed_count = self._count_units()
        return structs.replace(
            collection_slice,
            done=done_count,
            failed=failed_count,
            indices=None
            if collection_slice.indices is None
            else collection_slice.indices[first:end],
            shard_key=str(unit) if self._inside.is_shard else None,
        )

    def _get_unit_key(self, frame: Frame) -> str:
        shard_key = frame.sliced.shard_key if frame.sliced is not None else None
        return shard_key if shard_key is not None else str(frame.slot)

    def _count_units(self) -> tuple[int, int, int]:
        """Return how many units ended, succeeded and failed, as the failure policy counts them."""
        frame_results = [unit_end.result for unit_end in self.ended if unit_end is not None]
        if self._inside.is_shard or self._frame.policy.process == "frame":
            failed_count = sum(frame_result.error is not None for frame_result in frame_results)
            return len(frame_results), len(frame_results) - failed_count, failed_count
        done_count = sum(item.rows_done for item in frame_results)
        failed_count = sum(item.rows_failed for item in frame_results)
        return done_count + failed_count, done_count, failed_count

    def _has_failed_too_often(self) -> bool:
        bound = self._frame.policy.failed_max
        return bound is not None and self._count_units()[2] > bound

    def _stop_lanes(self) -> None:
        """Start no further unit, and cancel those that other lanes are at."""
        self._next = self._cut.units
        for lane in self._lanes:
            if lane is not asyncio.current_task():
                lane.cancel()

    def build_outcome(self) -> FrameResult:
        """Return what became of all units together."""
        frame_results = [unit_end.result for unit_end in self.ended if unit_end is not None]
        rows = sum(item.row_count for item in self.ended if item is not None)
        added = _add_up_results(frame_results)
        return structs.replace(
            added,
            error=self._error,
            patch=self._patch,
            duration_s=self._services.clock.monotonic_s() - self._started_at,
            rows_cancelled=len(self._frame.rows) - rows + added.rows_cancelled,
        )


def _add_up_results(frame_results: list[FrameResult]) -> FrameResult:
    """Add up frames that followed each other."""
    patch: dict[str, Any] = {}
    metrics: MetricsByTask = {}
    for frame_result in frame_results:
        patch.update(frame_result.patch)
        metrics = add_task_metrics(metrics, frame_result.metrics)
    return FrameResult(
        rows_done=sum(item.rows_done for item in frame_results),
        rows_failed=sum(item.rows_failed for item in frame_results),
        error=next((item.error for item in frame_results if item.error is not None), None),
        patch=patch,
        results=[value for item in frame_results for value in item.results],
        remaining=[],
        duration_s=sum(item.duration_s for item in frame_results),
        rows_cancelled=sum(item.rows_cancelled for item in frame_results),
        metrics=metrics,
    )


async def render_shard_key(
    frame: Frame, block: CompiledPipeline, context: CommandContext, services: CommandServices
) -> str:
    """Render what names a shard for its effects; without a template it is its index."""
    loop = block.step.loop
    template = loop.spec.fanout.key if loop is not None and loop.spec.fanout else None
    if template is None or not frame.rows:
        return str(frame.slot)
    fixed, iterators = build_frame_names(context, frame, row_index=0)
    names = context.build_scope(fixed, ctx=context.ctx, iterators=iterators)
    key: Any = await render_field(
        compile_value(template),
        names,
        "loop.spec.fanout.key",
        context=context,
        payloads=services.payloads,
    )
    return str(key)
