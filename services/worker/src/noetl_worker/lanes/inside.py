"""Loops that are one command (`exec: local`): a frame cut into units that run side by side here."""

import asyncio
from typing import Any

from msgspec import Struct, structs

from noetl_chassis.together import together
from noetl_contracts import codec, ids
from noetl_contracts.errors import KINDS_NOT_RETRIED, ErrorObject
from noetl_contracts.ids import FrameId
from noetl_contracts.payloads import JSON_MEDIA_TYPE
from noetl_contracts.slicing import Inside, Layout, UnitsEnd
from noetl_contracts.task_metrics import MetricsByTask, add_tasks
from noetl_playbook.expressions import compile_value
from noetl_playbook.parts import Part
from noetl_worker.domain import frames
from noetl_worker.domain.frames import Frame, FrameResult, Sliced
from noetl_worker.lanes.block import Block
from noetl_worker.lanes.hands import Hands
from noetl_worker.lanes.once import run_once
from noetl_worker.lanes.unit import Surrounding, frame_names, rendered

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


async def run_inside(
    frame: Frame,
    *,
    block: Block,
    surrounding: Surrounding,
    hands: Hands,
    layout: Layout | None = None,
) -> tuple[FrameResult, list[UnitEnd | None]]:
    """Run a frame unit by unit, as its policy cuts it; a unit that never ended is None."""
    inside = frame.policy.inside
    assert inside is not None, "only frames that are cut come here"
    run = _Run(
        frame, inside=inside, layout=layout, block=block, surrounding=surrounding, hands=hands
    )
    await run.all()
    return run.outcome(), run.ended


async def counted(ended: list[UnitEnd | None], *, hands: Hands, keeps: bool) -> UnitsEnd:
    """Count units for the ledger, and keep what each gave if the loop collects it."""
    found = [one for one in ended if one is not None]
    failed = sum(one.result.error is not None for one in found)
    parts_ref = None
    if keeps:
        parts = [await _part(index, one, hands) for index, one in enumerate(ended)]
        parts_ref = await hands.payloads.store(
            codec.encode(parts), media_type=JSON_MEDIA_TYPE, row_count=len(parts)
        )
    return UnitsEnd(
        ok=len(found) - failed,
        failed=failed,
        retried=sum(one.retried for one in found),
        parts_ref=parts_ref,
    )


async def _part(index: int, end: UnitEnd | None, hands: Hands) -> Part:
    if end is None:
        return Part(index=index, key=str(index), status="cancelled")
    error = end.result.error
    return Part(
        index=index,
        key=end.key,
        status="ok" if error is None else "error",
        result=await hands.keeper.keep_list(end.result.results),
        error=None if error is None else codec.builtins(hands.mask.error(error)),
        row_count=end.row_count,
        is_single=end.is_single,
    )


class _Run:
    """Hands out units in order to as many lanes as may run at once."""

    def __init__(
        self,
        frame: Frame,
        *,
        inside: Inside,
        layout: Layout | None,
        block: Block,
        surrounding: Surrounding,
        hands: Hands,
    ) -> None:
        self._frame = frame
        self._inside = inside
        self._offsets = None if layout is None else layout.offsets
        self._cut = inside.cut(len(frame.rows))
        self._block = block
        self._surrounding = surrounding
        self._hands = hands
        self._next = 0
        self._patch: dict[str, Any] = {}
        self._error: ErrorObject | None = None
        self._lanes: list[asyncio.Task[None]] = []
        self._started_at = hands.clock.monotonic()
        self.ended: list[UnitEnd | None] = [None] * self._cut.units

    async def all(self) -> None:
        """Run every unit, or until too many have failed."""
        async with together() as group:
            for _ in range(min(self._inside.in_flight, self._cut.units)):
                self._lanes.append(group.create_task(self._lane()))

    async def _lane(self) -> None:
        while self._next < self._cut.units:
            unit = self._next
            self._next += 1
            end = await self._unit(unit)
            self.ended[unit] = end
            self._patch.update(end.result.patch)
            self._error = self._error or end.result.error
            if self._has_failed_too_often():
                self._stop()
            # Units that wait for nothing would never hear that they are to stop.
            await asyncio.sleep(0)

    async def _unit(self, unit: int) -> UnitEnd:
        """Run a unit to its end; a shard that failed is tried again after a wait."""
        tries = 0
        while True:
            tries += 1
            first = await self._first(unit, attempt=tries)
            end = await self._frames(unit, first)
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
            key=self._key_of(first),
            row_count=len(first.rows),
            is_single=counts_frames or (self._inside.is_shard and len(first.rows) == 1),
            retried=tries - 1,
        )

    async def _frames(self, unit: int, frame: Frame) -> FrameResult:
        """Run a unit's frame, and its rows that are left as frames of their own."""
        surrounding = self._surrounding.overlaid(self._patch)
        found: list[FrameResult] = []
        while True:
            result = await run_once(
                frame,
                block=self._block,
                surrounding=surrounding,
                hands=self._hands,
                may_leave_rows=not self._inside.is_shard,
            )
            found.append(result)
            if not result.remaining:
                return _added(found)
            surrounding = surrounding.overlaid(result.patch)
            frame = self._continued(unit, frame, len(result.remaining))

    def _continued(self, unit: int, frame: Frame, left: int) -> Frame:
        index = frame.frame_index + 1
        return self._cut_out(
            unit,
            index,
            first=frame.base_index - self._frame.base_index + len(frame.rows) - left,
            end=frame.base_index - self._frame.base_index + len(frame.rows),
            attempt=frame.attempt,
            parent=frame.frame_id,
        )

    async def _first(self, unit: int, *, attempt: int) -> Frame:
        first, end = self._cut.bounds(unit, self._offsets)
        frame = self._cut_out(unit, 0, first=first, end=end, attempt=attempt, parent=None)
        if not self._inside.is_shard:
            return frame
        return frames.keyed(
            frame, await shard_key(frame, self._block, self._surrounding, self._hands)
        )

    def _cut_out(
        self,
        unit: int,
        index: int,
        *,
        first: int,
        end: int,
        attempt: int,
        parent: FrameId | None,
    ) -> Frame:
        whole = self._frame
        names = {key: one for key, one in whole.policy_names.items() if key != "inside"}
        return structs.replace(
            whole,
            frame_id=ids.inner_frame_id(whole.frame_id, unit=unit, frame_index=index),
            root_frame_id=ids.inner_frame_id(whole.frame_id, unit=unit, frame_index=0),
            slot=unit,
            frame_index=index,
            base_index=whole.base_index + first,
            attempt=attempt,
            rows=whole.rows[first:end],
            policy=structs.replace(whole.policy, inside=None, failed_max=None),
            policy_names=names
            if self._inside.size is None
            else {**names, "max_rows": self._inside.size},
            parent_frame_id=parent,
            sliced=self._sliced(unit, first, end),
        )

    def _sliced(self, unit: int, first: int, end: int) -> Sliced | None:
        whole = self._frame.sliced
        if whole is None:
            return None
        _, done, failed = self._counts()
        return structs.replace(
            whole,
            done=done,
            failed=failed,
            indices=None if whole.indices is None else whole.indices[first:end],
            shard_key=str(unit) if self._inside.is_shard else None,
        )

    def _key_of(self, frame: Frame) -> str:
        known = frame.sliced.shard_key if frame.sliced is not None else None
        return known if known is not None else str(frame.slot)

    def _counts(self) -> tuple[int, int, int]:
        """Return how many units ended, succeeded and failed, as the failure policy counts them."""
        found = [one.result for one in self.ended if one is not None]
        if self._inside.is_shard or self._frame.policy.process == "frame":
            failed = sum(one.error is not None for one in found)
            return len(found), len(found) - failed, failed
        done = sum(one.rows_done for one in found)
        failed = sum(one.rows_failed for one in found)
        return done + failed, done, failed

    def _has_failed_too_often(self) -> bool:
        bound = self._frame.policy.failed_max
        return bound is not None and self._counts()[2] > bound

    def _stop(self) -> None:
        """Start no further unit, and cancel those that other lanes are at."""
        self._next = self._cut.units
        for lane in self._lanes:
            if lane is not asyncio.current_task():
                lane.cancel()

    def outcome(self) -> FrameResult:
        """Return what became of all units together."""
        found = [one.result for one in self.ended if one is not None]
        rows = sum(one.row_count for one in self.ended if one is not None)
        added = _added(found)
        return structs.replace(
            added,
            error=self._error,
            patch=self._patch,
            duration_s=self._hands.clock.monotonic() - self._started_at,
            rows_cancelled=len(self._frame.rows) - rows + added.rows_cancelled,
        )


def _added(found: list[FrameResult]) -> FrameResult:
    """Add up frames that followed each other."""
    patch: dict[str, Any] = {}
    metrics: MetricsByTask = {}
    for one in found:
        patch.update(one.patch)
        metrics = add_tasks(metrics, one.metrics)
    return FrameResult(
        rows_done=sum(one.rows_done for one in found),
        rows_failed=sum(one.rows_failed for one in found),
        error=next((one.error for one in found if one.error is not None), None),
        patch=patch,
        results=[value for one in found for value in one.results],
        remaining=[],
        duration_s=sum(one.duration_s for one in found),
        rows_cancelled=sum(one.rows_cancelled for one in found),
        metrics=metrics,
    )


async def shard_key(frame: Frame, block: Block, surrounding: Surrounding, hands: Hands) -> str:
    """Render what names a shard for its effects; without a template it is its index."""
    loop = block.step.loop
    template = loop.spec.fanout.key if loop is not None and loop.spec.fanout else None
    if template is None or not frame.rows:
        return str(frame.slot)
    fixed, iterators = frame_names(surrounding, frame, row_index=0)
    names = surrounding.scope(fixed, ctx=surrounding.ctx, iterators=iterators)
    key: Any = await rendered(
        compile_value(template),
        names,
        "loop.spec.fanout.key",
        surrounding=surrounding,
        payloads=hands.payloads,
    )
    return str(key)
